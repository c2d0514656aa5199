"""Every model that is known or here, with what this machine has of it."""

from dataclasses import dataclass
from pathlib import Path

from localmoe.hub.catalog import CatalogModel, LocalModel, local_models, other_models
from localmoe.hub.hf_cache import Revision, revisions_of


@dataclass(frozen=True)
class Listed:
    """A line of the list."""

    model: LocalModel
    revisions: tuple[Revision, ...]
    is_known: bool  # to the catalogue, or to the user's own models.toml

    @property
    def entry(self) -> CatalogModel:
        """What is known of it."""
        return self.model.entry

    @property
    def name(self) -> str:
        """What `-m` takes."""
        return self.model.entry.name

    @property
    def folder(self) -> Path | None:
        """Where it can be opened from; None: it is not here as a whole."""
        return self.model.path if self.model.state == "present" else None

    @property
    def num_bytes(self) -> int:
        """To download, or on disk where only that is known."""
        return self.entry.size_bytes or self.model.bytes_on_disk


def list_models() -> tuple[Listed, ...]:
    """The catalogue, the user's own, then what else the cache has. UsageError for a wrong models.toml."""
    known = [_listed(model, is_known=True) for model in local_models()]
    return (*known, *(_listed(model, is_known=False) for model in other_models()))


def _listed(model: LocalModel, *, is_known: bool) -> Listed:
    revisions = revisions_of(model.entry.repo) if model.entry.repo else []
    return Listed(model, tuple(revisions), is_known)
