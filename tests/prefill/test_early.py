"""Rows of a prompt's tiles cross while other tiles are attended to, and the answer is the same however it is cut."""

import time

import numpy as np
import pytest
from test_mixed import none_to_the_device, opened, parity, streams

from localmoe.devices.host import HostDevice
from localmoe.devices.spans import Span
from localmoe.kernels.segments import Tokens
from localmoe.prefill.early import LEAST_TILE, cut, hidden_share

LATE_S = 30e-3
PATIENCE_S = 10  # a test that waits longer has failed


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


def spans_of(case, num_tiles, choose=none_to_the_device, late=("launch",)):
    """Of a prompt on a device that takes its time to compute, so that who waits for whom shows."""
    device = HostDevice(64 << 20, probe=lambda kind: time.sleep(LATE_S) if kind in late else None)
    cache = case.cache()
    segment = parity.Segment(parity.reserved(cache.new_table(), 100), 0, 100)
    with opened(case, choose, cache=cache, device=device, num_tiles=num_tiles) as program:
        found = program.forward(case.ids, [segment])
        spans = program.recorded.all()
    parity.assert_near(found, streams.resident(case, [100])[-1:], streams.SAME)
    return spans


def of(spans, stage, layer):
    return sorted((s for s in spans if (s.stage, s.layer, s.device) == (stage, layer, "host")), key=lambda s: s.start_s)


@pytest.mark.parametrize("choose", [None, none_to_the_device, lambda counts: [3, 5]])
def test_a_tile_leaves_while_the_next_one_is_attended_to(v3, monkeypatch, choose):
    """No tile is attended to before the rows of the one before it are in the system's memory: that never hangs."""
    monkeypatch.setattr("localmoe.prefill.early.LEAST_TILE", 25)
    cache, left = v3.cache(), []
    segment = parity.Segment(parity.reserved(cache.new_table(), 100), 0, 100)
    with opened(v3, choose, cache=cache, num_tiles=4) as program:
        for before, tile in zip(program._tiles, program._tiles[1:], strict=False):

            def run(first, end, before=before, run=tile.program.run):
                layer = next((n for n, offer in enumerate(before._offers) if offer.op == end), None)
                if layer is not None:
                    left.append(before.left(layer).wait(PATIENCE_S))
                run(first, end)

            tile.program.run = run
        found = program.forward(v3.ids, [segment])
    assert left == [True] * (3 * (v3.config.num_moe_layers - 1) + 1)  # of the last layer only one tile is wanted
    parity.assert_near(found, streams.resident(v3, [100])[-1:], streams.SAME)


def test_the_first_tile_goes_on_before_the_last_ones_rows_are_back(v3, monkeypatch):
    """Each way back takes as long as a tile: the next layer's first tile does not wait for all of them."""
    monkeypatch.setattr("localmoe.prefill.early.LEAST_TILE", 25)
    spans = spans_of(v3, 4, late=("launch", "peer"))
    for layer in range(1, v3.config.num_moe_layers - 1):
        first = of(spans, "attention", layer)[0]
        back = [s for s in of(spans, "exchange", layer - 1) if s.group == 3][-1]
        assert first.start_s < back.start_s


def test_most_bytes_cross_under_attention(v3, monkeypatch):
    monkeypatch.setattr("localmoe.prefill.early.LEAST_TILE", 12)
    assert hidden_share(spans_of(v3, 8)) >= 0.7
    assert hidden_share(spans_of(v3, 1)) < 0.1


def test_bytes_count_by_the_time_that_they_take_under_attention():
    def span(stage, start_s, end_s, num_bytes=0, device="GPU 0"):
        return Span(device, stage, 0, 0, start_s, end_s, num_bytes)

    attended = [span("attention", 0.0, 1.0), span("attention", 2.0, 3.0)]
    assert hidden_share([*attended, span("exchange", 0.5, 1.5, 10)]) == pytest.approx(0.5)
    assert hidden_share([*attended, span("exchange", 0.5, 2.5, 10), span("exchange", 2.2, 2.4, 30)]) == pytest.approx(
        (0.5 * 10 + 30) / 40
    )
    assert hidden_share([*attended, span("exchange", 0.5, 0.6, 10, device="GPU 1")]) == 0
    assert hidden_share(attended) == 0


@pytest.mark.parametrize(("count", "tiles"), [(1, 1), (LEAST_TILE, 1), (2 * LEAST_TILE + 1, 2), (1000, 4), (1024, 4)])
def test_tiles_are_alike_and_none_is_tiny(v3, count, tiles):
    table = parity.reserved(v3.cache().new_table(), min(count, 100))
    segment = parity.Segment(table, 0, count)
    tokens = Tokens(np.zeros(count, np.int32), [segment], np.asarray([count - 1], np.int32))
    shares = cut(tokens, 4, 256)
    sizes = [share.tokens.num_rows for share in shares]
    assert len(sizes) == tiles and sum(sizes) == count and max(sizes) - min(sizes) <= 1 and max(sizes) <= 256
    assert [len(share.tokens.selected) for share in shares] == [0] * (tiles - 1) + [1]
