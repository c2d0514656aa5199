"""Suite slp: its cases, what each is beside, and what it says where there is nothing to measure."""

import pytest
import tiny

from localmoe.bench import early
from localmoe.bench import slp as suite
from localmoe.bench.run import parse_suites
from localmoe.bench.slp import Round
from localmoe.settings import load_settings

CASES = ["slp-transfer", "slp-balanced", "slp-compute", "slp-serial", "slp-two", "event-overhead"]


class Ears:
    def __init__(self):
        self.heard, self.warned = [], []

    def progress(self, text):
        self.heard.append(text)

    def warn(self, text):
        self.warned.append(text)


@pytest.fixture
def settings():
    return load_settings({})


def test_the_suite_is_known():
    assert parse_suites("slp") == ("slp",)


def test_every_case_has_a_row_with_its_reference(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(suite, "NUM_ROUNDS", 2)
    monkeypatch.setattr(suite, "MAX_TOKENS", 128)
    monkeypatch.setattr(early, "NUM_ROUNDS", 1)
    folder = tiny.make_checkpoint(tmp_path / "model", num_hidden_layers=3)
    ears = Ears()
    rows = list(suite.measure(settings, str(folder), ears))
    assert [row.case for row in rows] == [*CASES, "early-move"]
    assert all(row.suite == "slp" and row.value > 0 and row.reference > 0 and row.ratio > 0 for row in rows)
    assert {row.against for row in rows[:3]} == {suite.AGAINST}
    assert [row.unit for row in rows] == ["s", "s", "s", "s", "x", "us", "x"]
    assert any("dispatch and combine would send" in text for text in ears.heard)


def test_a_model_without_routed_experts_is_left_out(tmp_path, settings):
    folder = tiny.make_checkpoint(tmp_path / "model", num_hidden_layers=2, first_k_dense_replace=2)
    ears = Ears()
    assert list(suite.measure(settings, str(folder), ears)) == []
    assert ears.warned == ["slp is left out: this model has no routed experts"]


def test_what_bounds_a_round_is_the_longer_part():
    assert Round(transfer_s=2.0, compute_s=3.0, wall_s=3.3).bound_s == 3.0
    row = suite._row("slp-compute", [Round(2.0, 3.0, 3.3), Round(2.0, 4.0, 4.0), Round(5.0, 1.0, 6.0)], "scalar")
    assert row.ratio == pytest.approx(1.1)
    assert (row.value, row.reference) == (4.0, 4.0)


def test_tokens_are_found_whose_compute_takes_as_long_as_asked():
    class Linear:
        def compute_s(self, num_tokens):
            return 0.1 + 0.01 * num_tokens

    assert suite._tokens_for(Linear(), 4.0, suite.MAX_TOKENS, 128, 4) == pytest.approx(390, abs=10)
    assert suite._tokens_for(Linear(), 4.0, suite.MAX_TOKENS, 400, 2) == pytest.approx(390, abs=2)
    assert suite._tokens_for(Linear(), 1e9, suite.MAX_TOKENS, 128, 4) == suite.MAX_TOKENS
    assert suite._tokens_for(Linear(), 0.0, suite.MAX_TOKENS, 128, 4) == suite.FEW_TOKENS
