"""What a check found damaged leaves the cache, so that a pull of the same version fetches just that."""

import os
from pathlib import Path

from localmoe.hub.hf_cache import cache_folder
from localmoe.hub.verify import Report


def repository_of_folder(folder: Path) -> str:
    """The name on the hub of a snapshot's folder; "" for any other folder."""
    place = folder.parent.parent
    is_snapshot = folder.parent.name == "snapshots" and place.parent == cache_folder()
    return place.name.removeprefix("models--").replace("--", "/", 1) if is_snapshot else ""


def remove_damaged(report: Report) -> None:
    """Each file that was found damaged, and the bytes behind its name."""
    for one in report.findings:
        path = report.folder / one.file
        if path.is_symlink():
            Path(os.path.normpath(path.parent / path.readlink())).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
