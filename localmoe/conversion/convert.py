"""A conversion: a few shards at a time, each noted when it is made, and the folder named only when it is whole."""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from threading import Lock

from localmoe.conversion.journal import put, settle
from localmoe.conversion.plan import CONFIG, ConversionPlan
from localmoe.conversion.shard import Shard
from localmoe.conversion.target import Target
from localmoe.errors import CancelledError, LocalmoeError, OutOfMemoryError
from localmoe.events import Event
from localmoe.hub.checkpoint import INDEX, Checkpoint
from localmoe.hub.download.crew import work
from localmoe.hub.download.progress import Board, Gauge, Pulling
from localmoe.hub.json_file import shown
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors

MOST_AT_ONCE = 4  # shards; more wait for the disk


@dataclass(frozen=True, slots=True)
class Converting(Pulling):
    """As Pulling, of a source that is read and converted."""


class Conversion:
    """One run. `on_event` is called in the thread that `run` is called in; `cancel` may come from any."""

    def __init__(self, plan: ConversionPlan, on_event: Callable[[Event], None], at_once: int | None = None) -> None:
        self._plan, self._on_event = plan, on_event
        self._at_once = at_once or min(MOST_AT_ONCE, os.cpu_count() or 1)
        self._stop, self._lock = Flag(), Lock()
        self._journal, self._folder = plan.journal, plan.unfinished
        done = {target.name: target.source_bytes if plan.has(target) else 0 for target in plan.targets}
        self._board = Board(Gauge(t.name, done[t.name], t.source_bytes) for t in plan.targets)

    def run(self) -> Path:
        """The new model's folder, when it is whole. What was made before an error or a cancel serves the next run."""
        self._plan.require_room()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._journal.save()
                self._make_shards()
                self._finish()
        except CancelledError as error:
            raise self._paused() from error
        except OSError as error:
            raise _refused(self._folder, error) from error
        return self._plan.out

    def cancel(self) -> None:
        """Ends `run` soon, with CancelledError."""
        self._stop.set()

    def _make_shards(self) -> None:
        missing = self._plan.missing
        for target in self._plan.targets:
            if target not in missing:
                self._board.done(self._board[target.name])
        jobs = (lambda t=t: self._make(t) for t in missing)  # type: ignore[misc]
        work(jobs, self._at_once, self._stop, lambda: self._on_event(Converting(*self._board.shown())))

    def _make(self, target: Target) -> None:
        gauge = self._board[target.name]

        def on_read(num_bytes: int) -> None:
            if self._stop.is_set():
                raise CancelledError("stopped")
            self._board.came(gauge, num_bytes, gauge.done_bytes + num_bytes)

        with self._board.busy(gauge):
            matrices = Shard(target, self._folder, self._plan.chosen, on_read).make()
            with self._lock:
                settle(self._folder)
                self._journal.add(target.name, matrices)
        self._board.done(gauge)

    def _finish(self) -> None:
        """The small files, config.json the last of them; then the name."""
        plan = self._plan
        for path in plan.small_files:
            put(self._folder / path.name, path.read_bytes())
        if plan.is_sharded:
            put(self._folder / INDEX, _json(_index(plan)))
        put(self._folder / CONFIG, _json(dict(plan.config)))
        self._remove_remains()
        checkpoint = Checkpoint.open(self._folder)
        checkpoint.validate(expected_tensors(read_config(checkpoint.config)))
        settle(self._folder)
        self._folder.rename(plan.out)
        settle(plan.out.parent)

    def _remove_remains(self) -> None:
        """What a killed run was writing."""
        for path in self._folder.glob("*.new"):
            path.unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two runs must not write one folder."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalmoeError(
                    f"another localmoe is converting into {shown(self._folder)}.", "wait for it, or stop it first."
                ) from error
            yield
        finally:
            os.close(fd)

    def _paused(self) -> CancelledError:
        made, total = len(self._journal.shards), len(self._plan.targets)
        return CancelledError(
            f"paused: {made} of {total} files of {shown(self._plan.name)} are converted and stay in "
            f"{shown(self._folder)}.",
            "the same command goes on from there.",
        )


def _index(plan: ConversionPlan) -> dict[str, object]:
    weight_map = {name: target.name for target in plan.targets for name in target.slots}
    total = sum(target.tensor_bytes for target in plan.targets)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def _json(data: dict[str, object]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def _refused(folder: Path, error: OSError) -> LocalmoeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemoryError(
            f"the disk of {shown(folder)} is full.", "make room there; the same command goes on: what is made stays."
        )
    what = shown(error.filename or folder)
    return LocalmoeError(f"{what} cannot be read or written: {error.strerror}.", "check its permissions and the disk.")
