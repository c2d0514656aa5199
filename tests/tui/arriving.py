"""A home with a cache of its own, a loopback hub with one model, and the models page over both."""

from contextlib import contextmanager
from pathlib import Path

import tiny
from loopback_hub import LoopbackHub, Repo, files_in, serving
from staged import StagedChat, opened, until

from localmoe.hub.download.patience import Patience
from localmoe.settings import RULES
from localmoe.tui.screens.models import ModelsScreen

REPO = "someone/Tiny-MoE"
NAME = "tiny"
QUICK = Patience(tries=3, first_wait_s=0.01, longest_wait_s=0.05, longest_asked_s=3.0, connect_s=5, stall_s=10)
SHARD = "model-00002-of-000003.safetensors"


def own_home(folder: Path, monkeypatch) -> Path:
    """Nothing of the user who runs the tests; `tiny` is a model of his own. The cache's folder."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in RULES:
        monkeypatch.delenv(f"LOCALMOE_{name.upper()}", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "hf" / "token"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
    models = folder / "config" / "localmoe" / "models.toml"
    models.parent.mkdir(parents=True)
    models.write_text(f'[{NAME}]\ntitle = "A model of the tests"\nrepo = "{REPO}"\n')
    return folder / "hf" / "hub"


def make_files(folder: Path) -> dict[str, bytes]:
    """Three shards that run."""
    return files_in(tiny.make_checkpoint(folder, shards=3))


@contextmanager
def hub_with(files: dict[str, bytes], monkeypatch):
    with serving({REPO: Repo(dict(files))}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def patient(app: StagedChat) -> StagedChat:
    app.transfers.patience = QUICK
    return app


async def models_page(pilot, name: str = NAME) -> ModelsScreen:
    """The page, with this machine looked at and `name` chosen."""
    app = await opened(pilot)
    await pilot.press("f3")
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and not app.screen._is_looking)
    return await choose(pilot, app.screen, name)


async def choose(pilot, page: ModelsScreen, name: str) -> ModelsScreen:
    place = next(n for n, listed in enumerate(page._listed) if listed.name == name)
    await pilot.press("home", *["down"] * place)
    await until(pilot, lambda: page.chosen and page.chosen.name == name)
    return page


def transfer(app: StagedChat, name: str = NAME):
    return app.transfers.of(name)


def slow(hub: LoopbackHub, bytes_per_s: float = 200_000) -> None:
    """So that a download can be looked at."""
    hub.bytes_per_s = bytes_per_s
