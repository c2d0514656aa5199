"""A pull for the tests: from a loopback hub into a cache of its own, with little patience."""

from pathlib import Path
from threading import Event as Flag

from loopback_hub import LoopbackHub, Repo, files_in

from localmoe.hub.download.patience import Patience
from localmoe.hub.download.plan import DownloadPlan, make_plan
from localmoe.hub.download.pull import Pull

REPO = "someone/Their-MoE"
QUICK = Patience(tries=4, first_wait_s=0.01, longest_wait_s=0.05, longest_asked_s=3.0, connect_s=5, stall_s=0.4)
STEADY = Patience()  # where nothing but a kill is to end a pull: the machine may be busy


def plan_of(repository: str = REPO, revision: str = "main", patience: Patience = QUICK) -> DownloadPlan:
    return make_plan(repository, repository, revision, patience, Flag(), lambda text: None)


def pull(
    repository: str = REPO, revision: str = "main", on_event=lambda event: None, patience: Patience = QUICK, **wanted
) -> Path:
    return Pull(plan_of(repository, revision, patience), on_event, patience=patience, **wanted).run()


def contents(folder: Path) -> dict[str, bytes]:
    """What is found under its name, links followed."""
    return files_in(folder)


def of_repo(hub: LoopbackHub, folder: Path, repository: str = REPO) -> dict[str, bytes]:
    """The same files of the hub."""
    return {name: hub.repos[repository].files[name] for name in contents(folder)}


def repo_of(folder: Path) -> Repo:
    return Repo(files_in(folder) | {"README.md": b"# Not needed", "consolidated.safetensors": b"not needed either"})
