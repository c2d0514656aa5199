"""Suite load: what it measures, and what it says where it cannot."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

import localmoe
from localmoe.bench import load as suite
from localmoe.bench.load import Measured
from localmoe.bench.plain_reader import SETTINGS, Setting, read_rate
from localmoe.bench.run import parse_suites
from localmoe.bench.table import huge_page_share
from localmoe.engine.reading import WeightReader, weight_memory
from localmoe.errors import LocalmoeError
from localmoe.weights import load as loading

MEASURED = Measured(4 * 10**9, 4_100_000_000, "weights were read directly", True, 3e9, "2 threads", [(9e8, 1e9)] * 3)


class Ears:
    def __init__(self):
        self.heard, self.warned = [], []

    def progress(self, text):
        self.heard.append(text)

    def warn(self, text):
        self.warned.append(text)


@pytest.fixture
def folder(tmp_path):
    return tiny.make_checkpoint(tmp_path / "model", num_hidden_layers=4, shards=2)


def test_the_suite_is_known():
    assert parse_suites("load") == ("load",)


def test_rates_are_compared_in_pairs(monkeypatch, folder):
    monkeypatch.setattr(suite, "_in_a_process", lambda folder, most: MEASURED)
    ears = Ears()
    rate, first, memory = suite.measure(str(folder), ears)
    assert (rate.suite, rate.case, rate.metric, rate.unit) == ("load", "load", "gb_s", "GB/s")
    assert (rate.value, rate.reference, rate.ratio) == (0.9, 1.0, pytest.approx(0.9))
    assert (first.case, first.value, first.ratio) == ("load-first", 3.0, 3.0)
    assert rate.against == first.against == "the disk's direct reads"
    assert (memory.case, memory.unit, memory.reference) == ("load-peak", "MiB", 1024)
    assert memory.value == pytest.approx(1e8 / (1 << 20))
    assert memory.ratio == pytest.approx(memory.value / 1024)
    assert ears.warned == []
    assert "the fastest direct reads: 2 threads" in ears.heard


def test_memory_that_comes_slowly_is_said(monkeypatch, folder):
    slow = Measured(1000, 1000, "n", True, 1e8, "2 threads", [(9e8, 1e9)])
    monkeypatch.setattr(suite, "_in_a_process", lambda folder, most: slow)
    ears = Ears()
    list(suite.measure(str(folder), ears))
    assert any("longer to find new memory" in text for text in ears.warned)


def test_a_model_that_is_not_read_directly_has_no_rate_and_that_is_said(folder):
    ears = Ears()
    (memory,) = suite.measure(str(folder), ears)
    assert memory.case == "load-peak"
    assert 0 < memory.ratio < 1
    assert any("load is left out: weights were read through the page cache" in text for text in ears.warned)


def test_all_of_it_is_found(monkeypatch, folder):
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    monkeypatch.setattr(suite, "NUM_PAIRS", 2)
    found = suite.find(folder, 1 << 30)
    assert found.is_direct
    assert set(found.settings.split(" or ")) < {str(setting) for setting in SETTINGS}
    assert len(found.pairs) == 2
    assert min(found.first_rate, *(rate for pair in found.pairs for rate in pair)) > 0
    assert found.peak_bytes > found.file_bytes


def test_the_peak_counts_what_was_there_and_is_gone():
    program = """
import numpy as np
from localmoe.bench import load as suite
before = suite.peak_bytes()
np.ones(200 << 20, np.uint8)
print(suite.peak_bytes() - before)
"""
    home = Path(localmoe.__file__).parent.parent
    command = [sys.executable, "-c", program]
    grown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home).stdout
    assert int(grown) > 100 << 20


def test_slow_disks_end_after_a_pair(monkeypatch, folder):
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    monkeypatch.setattr(suite, "PAIRS_S", 0.0)
    assert len(suite.find(folder, 1 << 30).pairs) == 1


def test_weights_that_cannot_be_loaded_end_the_suite_with_the_reason(folder):
    next(folder.glob("*.safetensors")).write_bytes(b"no")
    with pytest.raises(LocalmoeError, match="could not be loaded") as caught:
        list(suite.measure(str(folder), Ears()))
    assert "CheckpointError" in caught.value.hint


def test_only_the_layers_that_fit_are_read(folder):
    whole, part, least = (WeightReader(folder, most) for most in (1 << 40, 500_000, 0))
    assert whole.file_bytes > part.file_bytes >= least.file_bytes > 0
    assert part.file_bytes <= 500_000
    assert part.read()[1].nbytes > 0


def test_later_reads_go_to_the_same_memory(folder):
    weights = WeightReader(folder, 1 << 30)
    one, other = weights.read()[1], weights.read()[1]
    assert np.shares_memory(one.vector("model.norm.weight"), other.vector("model.norm.weight"))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_plain_reader_reads_every_byte_once(tmp_path, monkeypatch, setting):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(bytes(9 << 20))
    real, seen = os.preadv, []

    def watch(fd, buffers, at):
        seen.append((fd, at, real(fd, buffers, at)))
        return seen[-1][2]

    monkeypatch.setattr(os, "preadv", watch)
    assert read_rate(files, 1 << 30, setting) > 0
    assert sum(count for _, _, count in seen) == 18 << 20
    assert len({(fd, at) for fd, at, _ in seen}) == len(seen)
    seen.clear()
    read_rate(files, 8 << 20, setting)
    assert sum(count for _, _, count in seen) == 8 << 20


def test_the_plain_reader_reads_into_memory_like_the_weights(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(8 << 20))
    real, shares = os.preadv, []

    def watch(fd, buffers, at):
        done = real(fd, buffers, at)
        shares.append(huge_page_share(np.frombuffer(buffers[0], np.uint8)))
        return done

    monkeypatch.setattr(os, "preadv", watch)
    read_rate([tmp_path / "a"], 8 << 20, Setting(1, 4 << 20))
    like = weight_memory(4 << 20)
    like[:] = 1
    assert min(shares) == huge_page_share(like)


def test_the_plain_reader_does_not_hide_a_disk_that_refuses(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(1 << 20))

    def refuse(*arguments):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(OSError):
        read_rate([tmp_path / "a"], 1 << 20, Setting(2, 1 << 20))


def test_the_process_says_what_it_found_as_json(monkeypatch, folder, capsys):
    monkeypatch.setattr(sys, "argv", ["", str(folder), "1000000000"])
    suite.main()
    assert '"is_direct": false' in capsys.readouterr().out
