"""For all tests of screens."""

import pytest

from localmoe.tui import pace


@pytest.fixture(autouse=True)
def drawn_often(monkeypatch):
    """Whatever it costs: tests wait for what is drawn."""
    for share in ("SHARE", "BUSY_SHARE"):
        monkeypatch.setattr(pace, share, 1 / 2)
