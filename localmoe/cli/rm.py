"""`localmoe rm`: says what goes, asks, and frees just that."""

import json
import sys
from typing import Any

from localmoe.cli.pull import asked
from localmoe.cli.streams import to_stderr, to_stdout
from localmoe.cli.targets import Repository, repository_of
from localmoe.errors import LocalmoeError, UsageError
from localmoe.hub.amount import amount
from localmoe.hub.removal import Removal, plan_removal, remove


def rm(model: str, *, yes: bool, as_json: bool, quiet: bool) -> int:
    """Removes a model from the cache, or with `@revision` only that one."""
    target = repository_of(model)
    removal = plan_removal(target.repository, target.revision if target.is_pinned else None)
    if not yes:
        _confirm(target, removal, quiet=quiet)
    remove(removal)
    if as_json:
        to_stdout(json.dumps(removal_json(target.name, removal)) + "\n")
    elif not quiet:
        to_stderr(f"{target.name} is removed; {amount(removal.num_bytes)} are free again.\n")
    return 0


def removal_json(name: str, removal: Removal) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": name,
        "repo": removal.repository,
        "removed": list(removal.commits),
        "kept": list(removal.kept),
        "freed_bytes": removal.num_bytes,
    }


def _confirm(target: Repository, removal: Removal, *, quiet: bool) -> None:
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        raise UsageError(f"removing {target.name} has to be confirmed", f"localmoe rm {target.name} --yes")
    if not quiet:
        what = f"{len(removal.commits)} revisions of {target.name}" if len(removal.commits) > 1 else target.name
        stays = f"; {len(removal.kept)} other revisions stay" if removal.kept else ""
        to_stderr(f"{what} in {removal.folder}: {amount(removal.num_bytes)}{stays}\n")
    if not asked(f"remove {target.name} and free {amount(removal.num_bytes)}?"):
        raise LocalmoeError("nothing was removed.")
