"""For all tests of screens."""

import pytest
from textual.widgets import Input

from localmoe.tui import pace


@pytest.fixture(autouse=True)
def drawn_often(monkeypatch):
    """Whatever it costs: tests wait for what is drawn."""
    for share in ("SHARE", "BUSY_SHARE"):
        monkeypatch.setattr(pace, share, 1 / 2)
    monkeypatch.setattr(pace, "FIGURES_EVERY_S", 0)


@pytest.fixture(autouse=True)
def steady_cursor(monkeypatch):
    """A picture is the same however long it takes to be made."""
    monkeypatch.setattr(Input, "_toggle_cursor", lambda self: None)
