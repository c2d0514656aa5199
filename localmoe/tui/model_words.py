"""What is known of a model, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from localmoe.hub.catalog import CatalogModel
from localmoe.hub.hf_cache import SHORT_COMMIT, Revision
from localmoe.tui import figures
from localmoe.tui.download_words import fits

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook
    from localmoe.tui.model_list import Listed

_STATES = {"present": "here", "incomplete": "here in part", "absent": "not here"}


def parameters(entry: CatalogModel) -> str:
    """671 B, 37 B active. Empty where they are not known."""
    if not entry.params:
        return ""
    active = f", {_count(entry.active_params)} active" if entry.active_params else ""
    return _count(entry.params) + active


def about(listed: "Listed") -> str:
    """671 B, 37 B active · FP8 · 128K context · deepseek-ai/DeepSeek-V3."""
    entry = listed.entry
    known = (
        parameters(entry),
        entry.format.upper(),
        f"{figures.tokens(entry.context)} context" if entry.context else "",
        entry.repo if entry.repo != entry.name else "",
        entry.folder,
    )
    return " · ".join(part for part in known if part)


def verdict(outlook: "Outlook") -> str:
    """What this machine makes of it: a sentence, with what would help where it does not run."""
    hint = f" {_sentence(outlook.refusal.hint)}" if outlook.refusal and outlook.refusal.hint else ""
    room = f"; the disk needs {figures.size(outlook.missing_disk_bytes)} more" if outlook.missing_disk_bytes else ""
    return f"This machine {fits(outlook)}{room}{hint}"


def versions(listed: "Listed") -> Iterator[str]:
    """Where several revisions are here, each."""
    if len(listed.revisions) > 1:
        yield from map(_version, listed.revisions)


def _version(revision: Revision) -> str:
    names = f" {', '.join(revision.names)}" if revision.names else ""
    size = figures.size(revision.num_bytes)
    return f"@{revision.commit[:SHORT_COMMIT]}{names}: {size}, {_STATES[revision.state]}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(number: int) -> str:
    """671000000000 -> "671 B"."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{number:,}"
