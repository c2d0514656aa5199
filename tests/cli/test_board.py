"""The board of a transfer at every width."""

import pytest

from localmoe.cli.board import lines
from localmoe.hub.download.progress import FileProgress, Pulling

SHARDS = tuple(
    FileProgress(f"model-{n:05d}-of-000163.safetensors", "fetching", n * 10**9, 43 * 10**8, 412_000_000.0)
    for n in (1, 2, 3)
)
EVENT = Pulling(447 * 10**9, 689 * 10**9, 1.6e9, 151.0, 12, 171, SHARDS)


def test_at_100_columns_there_is_all_of_it():
    assert lines(EVENT, 99, 23) == [
        "model-00001-of-000163.safetensors  ▓▓▓░░░░░░░░░  1.0 of 4.3 GB        412.0 MB/s",
        "model-00002-of-000163.safetensors  ▓▓▓▓▓▓░░░░░░  2.0 of 4.3 GB        412.0 MB/s",
        "model-00003-of-000163.safetensors  ▓▓▓▓▓▓▓▓░░░░  3.0 of 4.3 GB        412.0 MB/s",
        "12 of 171 files                    ▓▓▓▓▓▓▓▓░░░░  447.0 of 689.0 GB    1.6 GB/s  2 min 31 s left",
    ]


@pytest.mark.parametrize("width", range(12, 140))
def test_no_line_is_wider_than_the_terminal_and_shards_can_be_told_apart(width):
    drawn = lines(EVENT, width, 23)
    assert len(drawn) == 4 and all(0 < len(line) <= width for line in drawn)
    assert width < 32 or len(set(drawn[:3])) == 3


@pytest.mark.parametrize("height", range(1, 6))
def test_no_more_lines_than_the_terminal_has(height):
    drawn = lines(EVENT, 80, height)
    assert len(drawn) == min(4, height) and drawn[-1].startswith("12 of 171")


def test_a_file_that_waits_or_is_checked_says_so():
    event = Pulling(0, 10, 0.0, None, 0, 1, (FileProgress("a", "checking", 0, 10, 0.0),))
    assert lines(event, 80, 24)[0].endswith("0 of 10 B            checking")
