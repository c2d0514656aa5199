"""Who has which tokens and experts, and what several devices send each other."""

import numpy as np
import parity_of_streams as streams
import pytest

from localmoe.kernels.ops import Segment
from localmoe.kernels.segments import Tokens
from localmoe.prefill.cluster import most_own_tokens, share_tokens

parity = streams.parity


class Table:
    pages = np.zeros(4, np.int32)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return parity.case_of("two-shared", tmp_path_factory)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
@pytest.mark.parametrize("counts", [[1], [2], [7], [100], [40, 1, 1, 58], [3, 3]])
def test_every_token_is_one_devices(num_devices, counts):
    num = sum(counts)
    segments = [Segment(Table(), 10 * n, count) for n, count in enumerate(counts)]
    ids, selected = np.arange(num, dtype=np.int32) + 1000, np.cumsum(counts, dtype=np.int32) - 1
    shares = share_tokens(Tokens(ids, segments, selected), num_devices)
    found, chosen = np.zeros(num, np.int32), np.zeros(len(counts), np.int32)
    position = np.concatenate([np.arange(s.start, s.start + s.count) for s in segments])
    for share in shares:
        assert share.tokens.num_rows <= most_own_tokens(num, num_devices)
        own = np.concatenate([[], *(np.arange(s.start, s.start + s.count) for s in share.tokens.segments)])
        for rows in share.rows:
            found[rows.whole : rows.whole + rows.count] = share.tokens.ids[rows.own : rows.own + rows.count]
            assert (own[rows.own : rows.own + rows.count] == position[rows.whole : rows.whole + rows.count]).all()
        for rows in share.selected:
            picked = share.tokens.ids[share.tokens.selected[rows.own : rows.own + rows.count]]
            chosen[rows.whole : rows.whole + rows.count] = picked
    assert (found == ids).all()
    assert (chosen == ids[selected]).all()


def test_attention_is_split_about_evenly():
    shares = share_tokens(Tokens(np.zeros(1000, np.int32), [Segment(Table(), 0, 1000)], np.asarray([999])), 2)
    keys = [sum(s.start + n + 1 for s in share.tokens.segments for n in range(s.count)) for share in shares]
    assert max(keys) / min(keys) < 1.01


@pytest.mark.parametrize("num_devices", [2, 3, 4])
def test_what_is_sent_is_counted(case, num_devices):
    """Rows out and back for all tokens in all layers but the last, and for one token there."""
    with streams.opened(case, num_devices=num_devices) as pipeline:
        table = parity.reserved(pipeline._cache.new_table(), 100)
        pipeline.forward(case.ids, [Segment(table, 0, 100)])
        found, chosen = pipeline.exchanged, pipeline.last_experts
    rows = 100 * (case.config.num_moe_layers - 1) + 1
    row_bytes = 4 * case.config.hidden
    assert found.gathered == found.reduced == (num_devices - 1) * rows * row_bytes
    assert found.total == found.gathered + found.reduced
    assert 0 < found.deduplicated <= found.per_expert <= 2 * rows * case.config.top_k * row_bytes
    assert found.deduplicated <= found.total
    assert found.latents == (num_devices - 1) * 100 * case.config.num_layers * case.config.latent_width * 4
    assert chosen.shape == (case.config.num_moe_layers, 100, case.config.top_k)


def test_two_devices_send_less_than_dispatch_for_each_expert(case):
    """Half of each token's experts are elsewhere: K / 2 rows out and K / 2 back, against one of each."""
    with streams.opened(case, num_devices=2) as pipeline:
        streams.logits(case, pipeline, [100])
        found = pipeline.exchanged
    share = case.config.top_k / 2
    assert found.total / found.per_expert == pytest.approx(1 / share, rel=0.2)


def test_one_device_exchanges_nothing(case):
    with streams.opened(case) as pipeline:
        streams.logits(case, pipeline, [100])
        assert pipeline.exchanged is None


@pytest.mark.parametrize("num_devices", [7, 20])
def test_more_devices_than_there_is_work_for(case, num_devices):
    with streams.opened(case, num_devices=num_devices) as pipeline:
        found = streams.logits(case, pipeline, [3, 1, 96])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)
