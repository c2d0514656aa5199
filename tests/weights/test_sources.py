import ctypes
import errno
import mmap
import os

import numpy as np
import pytest

from localmoe.errors import CheckpointError
from localmoe.weights.arena import bounce_buffer
from localmoe.weights.pieces import BLOCK_BYTES
from localmoe.weights.sources import Source

NBYTES = 10 * BLOCK_BYTES + 123


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model-1.safetensors"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8).tobytes())
    return path


@pytest.fixture
def buffer():
    return bounce_buffer(16 * BLOCK_BYTES)


@pytest.fixture
def source(file):
    made = Source(file, direct=True)
    yield made
    made.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("start", "stop"), [(0, NBYTES), (0, 1), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES + 7)])
def test_bytes_are_the_files(file, buffer, direct, start, stop):
    source = Source(file, direct=direct)
    source.read(buffer, start, stop)
    source.close()
    assert source.is_direct == direct
    assert buffer[: stop - start].tobytes() == file.read_bytes()[start:stop]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_refused_when_opened(file, buffer, monkeypatch, code):
    real = os.open

    def refuse(path, flags):
        if flags & os.O_DIRECT:
            raise OSError(code, "no")
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    source = Source(file, direct=True)
    assert not source.is_direct
    source.read(buffer, 0, NBYTES)
    source.close()
    assert buffer[:NBYTES].tobytes() == file.read_bytes()


def test_refused_when_read(file, source, buffer, monkeypatch):
    """Also after the first reads: what has been read is not read again."""
    real, starts = os.preadv, []

    def refuse(fd, buffers, at):
        starts.append(at)
        if source.is_direct and at:
            raise OSError(errno.EINVAL, "no")
        return real(fd, [buffers[0][: 2 * BLOCK_BYTES]], at)

    monkeypatch.setattr(os, "preadv", refuse)
    source.read(buffer, 0, NBYTES)
    assert not source.is_direct
    assert buffer[:NBYTES].tobytes() == file.read_bytes()
    assert starts[:4] == [0, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES]


def test_an_argument_that_stays_wrong_is_an_error(source, buffer, monkeypatch):
    def refuse(fd, buffers, at):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(CheckpointError, match="cannot be read at byte 0: Invalid argument"):
        source.read(buffer, 0, NBYTES)


def test_a_read_that_stops_within_a_block_goes_on_through_the_cache(file, source, buffer, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real(fd, [buffers[0][:5000]], at))
    source.read(buffer, 0, NBYTES)
    assert not source.is_direct
    assert buffer[:NBYTES].tobytes() == file.read_bytes()


def test_a_disk_error_names_file_and_byte(file, source, buffer, monkeypatch):
    real = os.preadv

    def fail(fd, buffers, at):
        if at >= 4 * BLOCK_BYTES:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, [buffers[0][: 4 * BLOCK_BYTES]], at)

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match=rf"{file.name} cannot be read at byte 16,384: Input/output error"):
        source.read(buffer, 0, NBYTES)


@pytest.mark.parametrize("length", [5 * BLOCK_BYTES, 5 * BLOCK_BYTES + 77, 0])
def test_a_file_that_has_become_shorter_names_the_byte(file, source, buffer, length):
    os.truncate(file, length)
    with pytest.raises(CheckpointError, match=rf"shard {file.name} ended at byte {length:,} while it was read"):
        source.read(buffer, 0, NBYTES)


def test_a_file_that_may_not_be_read_is_no_reason_to_try_again(file, monkeypatch):
    def forbid(path, flags):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbid)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        Source(file, direct=True)


def cached_pages(path) -> int:
    """By mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapping:
        pages = (ctypes.c_ubyte * -(-len(mapping) // BLOCK_BYTES))()
        first = ctypes.c_char.from_buffer(mapping)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), pages)
        del first
        assert not failed
        return sum(page & 1 for page in pages)


@pytest.mark.parametrize("way", ["direct", "refused", "cached"])
def test_only_what_is_read_for_the_next_start_stays_in_the_page_cache(tmp_path, way):
    path = tmp_path / "big.safetensors"
    path.write_bytes(bytes(4 << 20))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert cached_pages(path) == 0, "this filesystem keeps its pages; run the tests with another --basetemp"
    source = Source(path, direct=way != "cached")
    if way == "refused":
        source._give_in()
    source.read(bounce_buffer(4 << 20), 0, 4 << 20)
    source.close()
    assert cached_pages(path) == (1024 if way == "cached" else 0)
