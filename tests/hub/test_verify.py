"""Verify: which file is damaged, by checksum or structure, and what can be said without a hub."""

import os

import pytest
import shards
from pulling import STEADY, pull

from localmoe.errors import CancelledError
from localmoe.hub.checkpoint import INDEX, TensorSpec
from localmoe.hub.download.progress import Verifying
from localmoe.hub.verify import Verification, known_digest

SHARD = "model-00002-of-000003.safetensors"


def verify(folder, expected=None):
    return Verification(folder, lambda event: None, expected).run()


def damage(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def folder(big_hub):
    return pull(patience=STEADY)


def test_what_was_pulled_is_right(folder, big_hub):
    big_hub.forget()
    report = verify(folder)
    assert report.is_right and not report.unknown
    assert (report.num_files, report.num_bytes) == (6, sum(path.stat().st_size for path in folder.iterdir()))
    assert not big_hub.seen


@pytest.mark.parametrize("name", [SHARD, "generation_config.json"])
def test_a_damaged_byte_is_found_and_named(folder, name):
    damage(folder / name, -3)
    (finding,) = verify(folder).findings
    assert finding.file == name
    assert "damaged" in finding.problem or "not valid JSON" in finding.problem


def test_a_file_cut_short_says_where_it_ends(folder):
    size = (folder / SHARD).stat().st_size
    os.truncate(folder / SHARD, size - 1)
    (finding,) = verify(folder).findings
    assert finding.problem == f"shard {SHARD} ends at byte {size - 1:,}; its header promises {size:,}."


def test_a_file_that_is_not_there(folder):
    (folder / SHARD).unlink()
    (finding,) = verify(folder).findings
    assert finding.file == SHARD and "is missing" in finding.problem


def test_a_link_to_nothing(folder):
    (folder / SHARD).resolve().unlink()
    (finding,) = verify(folder).findings
    assert finding.file == SHARD and "is missing" in finding.problem


def test_several_files_are_all_named(folder):
    damage(folder / SHARD)
    (folder / "model-00001-of-000003.safetensors").unlink()
    (folder / INDEX).resolve().write_text("{}")
    assert [one.file for one in verify(folder).findings] == [SHARD, INDEX]


def test_files_of_two_models(folder):
    report = verify(folder, lambda config: [TensorSpec("model.norm.weight", (3, 3), ("BF16",))])
    (finding,) = report.findings
    assert finding.file == INDEX and "has the shape" in finding.problem


def test_a_plain_folder_has_no_checksums_but_a_structure(tmp_path):
    folder = shards.make(tmp_path / "model")
    report = verify(folder)
    assert report.is_right and len(report.unknown) == report.num_files == 5
    os.truncate(folder / "model-00001-of-000002.safetensors", 5000)
    assert [one.file for one in verify(folder).findings] == ["model-00001-of-000002.safetensors"]


def test_a_folder_of_hf_download_has_the_checksums_that_it_noted(tmp_path):
    folder = shards.make(tmp_path / "model", num_shards=1)
    notes = folder / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / "model.safetensors.metadata").write_text(f"{'a' * 40}\n{'b' * 64}\n1700000000.5\n")
    assert known_digest(folder, "model.safetensors") == "b" * 64
    (finding,) = verify(folder).findings
    assert finding.file == "model.safetensors" and "not bbbbbbbbbbbb…" in finding.problem


def test_an_empty_folder(tmp_path):
    assert {one.file for one in verify(tmp_path).findings} == {"config.json", "model.safetensors"}


def test_it_tells_how_it_goes_and_can_be_cancelled(folder):
    told = []
    Verification(folder, told.append).run()
    assert isinstance(told[-1], Verifying) and told[-1].done_bytes == told[-1].total_bytes
    stopped = Verification(folder, lambda event: stopped.cancel())
    with pytest.raises(CancelledError):
        stopped.run()
