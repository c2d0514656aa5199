"""How every state looks, at 80x24 and at 120x40. `--snapshot-update` accepts a new look."""

import pytest
from scenes import SCENES


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("name", SCENES)
def test_picture(name, size, snap_compare):
    scene = SCENES[name]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=size)


@pytest.mark.parametrize("size", [(50, 20), (40, 12)], ids=["50x20", "40x12"])
def test_picture_of_a_small_terminal(size, snap_compare):
    scene = SCENES["prefill"]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=size)


def test_picture_of_the_light_theme(snap_compare):
    scene = SCENES["answer"]
    app = scene.app()
    app.theme = "localmoe-light"
    assert snap_compare(app, run_before=scene.play, terminal_size=(120, 40))


def test_picture_without_colours(snap_compare, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    scene = SCENES["answer"]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=(120, 40))
