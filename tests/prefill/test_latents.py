"""Latents that lie on devices: sent between them, moved to where decode reads them, and brought back for a prefix."""

import numpy as np
import parity_of_streams as streams
import pytest

from localmoe.devices.host import HostDevice
from localmoe.kernels.ops import PAGE_TOKENS, Segment
from localmoe.model.cache import LatentCache
from localmoe.model.mirror import Mirror, joined, written
from localmoe.model.programs import HostPrograms
from localmoe.prefill.pipeline import Pipeline, Shape

parity = streams.parity


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


class Far:
    """Devices with pages of their own, and the pipeline over them. `home` is where decode reads latents."""

    def __init__(self, case, num_devices, *, moves_home=True):
        self.case = case
        self.home = case.cache()
        self.pages = [case.cache() for _ in range(num_devices)]
        for cache in self.pages:
            cache._data[:] = np.nan  # what nobody brought there is found out
        self.mirrors = [Mirror(self.home, cache) for cache in self.pages]
        self.devices = [HostDevice(64 << 20, name=f"far{n}") for n in range(num_devices)]
        programs = [HostPrograms(case.model, mirror, streams.POOL) for mirror in self.mirrors]
        home = self.home if moves_home else None
        args = streams.memory_source(case), self.devices, programs, 100, Shape(4, 3)
        self.pipeline = Pipeline(case.config, self.home, *args, home=home)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipeline.close()
        for device in self.devices:
            device.close()

    def read(self, table, ids, start=0, **more):
        segment = Segment(parity.reserved(table, start + len(ids)), start, len(ids))
        return self.pipeline.forward(ids, [segment], all_logits=True, **more)


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_what_was_read_is_where_decode_goes_on(case, num_devices):
    with Far(case, num_devices) as far:
        table = far.home.new_table()
        found = far.read(table, case.ids[:70])
        rest, _ = parity.run(streams.resident_program(case, far.home), table, case.ids[70:], [1, 1, 28], start=70)
        moves = [s for s in far.pipeline.spans if s.stage == "unload"]
    truth = streams.resident(case, [100])
    parity.assert_near(found, truth[:70], streams.SAME)
    parity.assert_near(rest, truth[70:], streams.SAME)
    row_bytes = 4 * case.config.latent_width
    assert sum(s.num_bytes for s in moves) == 70 * case.config.num_layers * row_bytes
    assert sorted({s.layer for s in moves}) == list(range(case.config.num_layers))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_prefix_that_is_only_at_home_is_brought(case, num_devices):
    """A prompt, steps elsewhere, and a prompt again: the steps' rows come, and nothing that is there already."""
    with Far(case, num_devices) as far:
        table, program = far.home.new_table(), streams.resident_program(case, far.home)
        parity.run(program, table, case.ids[:20], [20])
        far.read(table, case.ids[20:60], 20)
        parity.run(program, table, case.ids[60:70], [1] * 10, start=60)
        assert (
            all(mirror.missing([Segment(table, 70, 1)]) == [range(60, 70)] for mirror in far.mirrors) or table.pages[0]
        )
        found = far.read(table, case.ids[70:], 70)
        brought = [s for s in far.pipeline.spans if s.stage == "unload"]
    parity.assert_near(found, streams.resident(case, [100])[70:], streams.SAME)
    row_bytes = 4 * case.config.latent_width * case.config.num_layers
    assert sum(s.num_bytes for s in brought) == (10 * num_devices + 30) * row_bytes


def test_a_rewound_session_forgets_what_the_device_has_behind_it(case):
    with Far(case, 1) as far:
        table, program = far.home.new_table(), streams.resident_program(case, far.home)
        far.read(table, case.ids[::-1][:60].copy())
        table.rewind(0)
        parity.run(program, table, case.ids[:50], [50])
        found = far.read(table, case.ids[50:], 50)
    parity.assert_near(found, streams.resident(case, [100])[50:], streams.SAME)


def test_a_fork_writes_to_a_page_of_its_own_everywhere(case):
    with Far(case, 2) as far:
        table = far.home.new_table()
        far.read(table, case.ids[:70])
        other = table.fork()
        far.read(other, case.ids[::-1][:20].copy(), 70)
        found = far.read(table, case.ids[70:], 70)
    parity.assert_near(found, streams.resident(case, [100])[70:], streams.SAME)


@pytest.mark.parametrize("num_devices", [2, 3])
def test_devices_send_each_other_what_they_need(case, num_devices):
    """Without a home: each has all tokens' latents, so that the next chunk finds its prefix on all of them."""
    with Far(case, num_devices, moves_home=False) as far:
        table = far.home.new_table()
        found = [far.read(table, case.ids[:60])]
        sent = far.pipeline.exchanged
        found.append(far.read(table, case.ids[60:], 60))
    parity.assert_near(np.concatenate(found), streams.resident(case, [100]), streams.SAME)
    expected = (num_devices - 1) * 60 * case.config.num_layers * case.config.latent_width * 4
    assert sent.sent_latents == sent.latents == expected


def test_a_device_that_has_not_attended_gets_the_prefix_from_one_that_has(case):
    """As where short prompts are read beside the first device only."""
    with Far(case, 2, moves_home=False) as far:
        table = parity.reserved(far.home.new_table(), 60)
        segment = Segment(table, 0, 60)
        parity.run(streams.resident_program(case, far.pages[0]), table, case.ids[:60], [60])
        far.mirrors[0].hold([segment])
        found = far.read(table, case.ids[60:], 60)
    parity.assert_near(found, streams.resident(case, [100])[60:], streams.SAME)


def test_nothing_is_moved_where_memory_is_common(case):
    with streams.opened(case, num_devices=2) as pipeline:
        streams.logits(case, pipeline, [100])
        assert pipeline.exchanged.sent_latents == 0
        assert not [s for s in pipeline.spans if s.stage == "unload"]


def test_latents_that_cannot_be_moved_end_the_run(case):
    with Far(case, 1) as far:
        whole, far.home._data = far.home._data, far.home._data[:, :0]
        with pytest.raises(ValueError, match="broadcast"):
            far.read(far.home.new_table(), case.ids[:70])
        far.home._data = whole
        found = far.read(far.home.new_table(), case.ids)
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)


def test_rows_are_counted_over_pages_that_lie_anywhere():
    class Table:
        pages = np.asarray([5, 6, 2], np.int32)

    assert written([Segment(Table(), 60, 80)]) == [range(128, 140), range(380, 448)]
    assert joined([range(3, 5), range(0, 2), range(2, 3), range(7, 7)]) == [range(0, 5)]


def test_a_mirror_holds_what_was_written_and_no_more():
    cache = LatentCache(1, 4, 8)
    mirror = Mirror(cache, LatentCache(1, 4, 8))
    table = cache.new_table()
    table.reserve(100)
    mirror.hold([Segment(table, 0, 100)])
    assert mirror.missing([Segment(table, 100, 1)]) == []
    table.rewind(80)
    table.reserve(90)  # ten rows that somebody else may write
    at = int(table.pages[1]) * PAGE_TOKENS
    assert mirror.missing([Segment(table, 90, 1)]) == [range(at + 16, at + 26)]
    table.release()
    table.reserve(10)
    assert len(mirror.missing([Segment(table, 10, 1)])) == 1


def test_rows_behind_missing_ones_do_not_count():
    """A run that fails before a prefix has come leaves nothing behind that looks complete."""
    cache = LatentCache(1, 4, 8)
    mirror = Mirror(cache, LatentCache(1, 4, 8))
    table = cache.new_table()
    table.reserve(100)  # the first 10 rows were written elsewhere
    mirror.hold([Segment(table, 10, 90)])
    first = int(table.pages[0]) * PAGE_TOKENS
    assert range(first, first + 64) in mirror.missing([Segment(table, 100, 1)])
    mirror.complete([Segment(table, 10, 90)])
    assert mirror.missing([Segment(table, 100, 1)]) == []
