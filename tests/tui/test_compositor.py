"""What is drawn anew is what Textual would draw."""

import pytest
from scenes import SCENES
from textual._compositor import Compositor
from textual.geometry import Region

REGIONS = {
    "a figure": {Region(96, 0, 24, 1)},
    "a line of the answer and the panel": {Region(3, 20, 70, 1), Region(81, 8, 37, 4)},
    "across edges": {Region(70, 3, 20, 30)},
    "two in one line": {Region(4, 37, 9, 1), Region(50, 37, 3, 1)},
    "nearly all": {Region(0, 0, 119, 40)},
}


def pieces(update):
    """What fills the lines that changed, by line and column."""
    return {
        (y, start): line[start]
        for y, x1, x2 in update.spans
        for line, ends in [(update.chops[y], update.chop_ends[y])]
        for start, end in zip(line, ends, strict=True)
        if start < x2 and end > x1
    }


@pytest.mark.parametrize("scene", ["streaming", "answer", "commands", "no_panel"])
async def test_what_changed_is_drawn_as_textual_draws_it(scene):
    app = SCENES[scene].app()
    async with app.run_test(size=(120, 40)) as pilot:
        await SCENES[scene].play(pilot)
        compositor = app.chat._compositor
        for regions in REGIONS.values():
            compositor._dirty_regions = set(regions)
            drawn = pieces(compositor.render_partial_update())
            compositor._dirty_regions = set(regions)
            assert drawn == pieces(Compositor.render_partial_update(compositor))
            assert None not in drawn.values()


async def test_where_nothing_changed_nothing_is_drawn():
    async with SCENES["empty"].app().run_test(size=(120, 40)) as pilot:
        pilot.app.screen._compositor._dirty_regions.clear()
        assert pilot.app.screen._compositor.render_partial_update() is None
