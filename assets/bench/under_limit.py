"""Measure llama.cpp and localmoe with a model larger than memory, in turn, and add both's rows to a CSV file.

    python assets/bench/under_limit.py --llama-bench PATH --gguf FILE --model FOLDER --csv FILE
        [--limit-gib 2] [--rounds 3] [--prefix "nice -n -20"]

FILE and FOLDER hold a model of the same shape: Q8_0 for llama.cpp, which maps it, FP8 for localmoe, which reads it.
Both run in a control group (v1 or v2) with that much memory, the page cache counted; needs root. A round is the disk's
direct reads, llama.cpp's prompts, localmoe's prompts, llama.cpp's answer, localmoe's answer; the page cache is dropped
before each. localmoe answers one question in a process of its own, its first; llama.cpp warms up before each, as
llama-bench does. Figures are medians over the rounds, ratios medians of the rounds' ratios.
Needs nothing but Python's standard library, and `localmoe` as a command.
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import shlex
import string
import struct
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from side_by_side import append, figure, read_rows, run

PROMPTS = (128, 512)  # tokens
ANSWER = 64
CONTEXT = 1024
MARKS = 3  # tokens of the chat template around a question
GROUPS = Path("/sys/fs/cgroup")
READERS, PIECE = 4, 4 << 20
LARGE_PAGE = 2 << 20
READ_BYTES = 1 << 30  # to find the disk's rate


class Limit:
    """A control group with `nbytes` of memory, and no swap."""

    def __init__(self, nbytes: int) -> None:
        is_v1 = (GROUPS / "memory" / "memory.limit_in_bytes").exists()
        self.folder = (GROUPS / "memory" if is_v1 else GROUPS) / f"localmoe-bench-{os.getpid()}"
        self.folder.mkdir()
        if is_v1:
            settings = {"memory.limit_in_bytes": nbytes, "memory.memsw.limit_in_bytes": nbytes}
        else:
            settings = {"memory.max": nbytes, "memory.swap.max": 0}
        for name, value in settings.items():
            if (self.folder / name).exists():  # no swap is counted where the kernel was built without it
                (self.folder / name).write_text(str(value))
            elif name in ("memory.limit_in_bytes", "memory.max"):
                sys.exit(f"{self.folder} has no {name}: the memory controller is not enabled there")

    def around(self, command: list[str]) -> list[str]:
        """`command`, within it."""
        enter = f'echo $$ > {shlex.quote(str(self.folder / "cgroup.procs"))} && exec "$@"'
        return ["sh", "-c", enter, "sh", *command]

    def close(self) -> None:
        """Once nothing runs there any more."""
        self.folder.rmdir()


class Models:
    """Both programs under one limit."""

    def __init__(self, a: argparse.Namespace, limit: Limit) -> None:
        self._prefix = shlex.split(a.prefix)
        self._limit = limit
        self._llama = [str(a.llama_bench), "-m", str(a.gguf), "-t", str(a.threads), "-r", "1", "-o", "json"]
        ours = ["ask", "--json", "--model", str(a.model), "--plan", "disk", "--context", str(CONTEXT)]
        self._ours = [*shlex.split(a.localmoe), *ours, "--threads", str(a.threads), "--temperature", "0"]
        os.environ["LOCALMOE_PREFILL_CHUNK"] = str(max(PROMPTS))
        self.peer = "llama.cpp"
        self.isa = ""

    def their_rate(self, prompt: int, answer: int) -> float:
        """Tokens per second of a prompt, or of an answer."""
        (found,) = json.loads(self._run([*self._llama, "-p", str(prompt), "-n", str(answer)]))
        self.peer = f"llama.cpp {found['build_commit']}"
        return float(found["avg_ts"])

    def our_timings(self, prompt: int, answer: int) -> dict[str, float]:
        """As `ask` tells them."""
        text = "".join(random.Random(prompt).choices(string.ascii_lowercase, k=prompt - MARKS))
        found = json.loads(self._run([*self._ours, "--max-tokens", str(answer), text]))
        usage, self.isa = found["usage"], found["plan"]["isa"]
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (prompt, answer):
            sys.exit(f"the model read or wrote other numbers of tokens: {usage}")
        return dict(found["timings"])

    def _run(self, command: list[str]) -> str:
        drop_caches()
        return run(self._limit.around([*self._prefix, *command]))


def drop_caches() -> None:
    """What the system keeps of files."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def pass_bytes(folder: Path) -> int:
    """Bytes of the routed experts that a prompt reads: of the last layer those that its last token chose."""
    config = json.loads((folder / "config.json").read_text())
    layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    of_last = config["num_experts_per_tok"] / config["n_routed_experts"]
    each = sum(nbytes for file in folder.glob("*.safetensors") for nbytes in expert_bytes(file)) / (layers - dense)
    return round((layers - dense - 1 + of_last) * each)


def expert_bytes(file: Path) -> Iterator[int]:
    """Of each tensor of routed experts."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
    for name, tensor in header.items():
        if ".mlp.experts." in name:
            start, stop = tensor["data_offsets"]
            yield stop - start


def large_pages(nbytes: int) -> memoryview:
    """Memory on pages of 2 MB where the system has them: into small ones a disk reads at a third of its rate."""
    mapping = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % LARGE_PAGE
    return memoryview(mapping)[start : start + nbytes]


def disk_rate(folder: Path) -> float:
    """Bytes per second of direct reads of the model's files by READERS threads."""
    files = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in sorted(folder.glob("*.safetensors"))]
    pieces = ((fd, at) for fd in files for at in range(0, os.fstat(fd).st_size - PIECE, PIECE))
    wanted = [piece for _, piece in zip(range(READ_BYTES // PIECE), pieces, strict=False)]

    def read(mine: list[tuple[int, int]]) -> None:
        buffer = large_pages(PIECE)
        for fd, at in mine:
            os.preadv(fd, [buffer], at)

    threads = [threading.Thread(target=read, args=(wanted[n::READERS],)) for n in range(READERS)]
    start_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start_s
    for fd in files:
        os.close(fd)
    return len(wanted) * PIECE / seconds


def measure(models: Models, folder: Path) -> dict[str, tuple[float, float]]:
    """One round: of each case our figure and the one beside it."""
    found: dict[str, tuple[float, float]] = {}
    for prompt in PROMPTS:
        theirs, disk = models.their_rate(prompt, 0), disk_rate(folder)
        ours = models.our_timings(prompt, ANSWER if prompt == max(PROMPTS) else 1)
        found[f"disk-prefill-{prompt}"] = (ours["prefill_tok_s"], theirs)
        rate = pass_bytes(folder) * ours["prefill_tok_s"] / prompt
        found[f"disk-rate-{prompt}"] = (rate / 1e9, disk / 1e9)
    found["disk-decode"] = (ours["decode_tok_s"], models.their_rate(0, ANSWER))
    for case, (value, reference) in found.items():
        print(f"{case}: {value:.2f} beside {reference:.2f}", file=sys.stderr)
    return found


def rows_of(rounds: list[dict[str, tuple[float, float]]], base: dict[str, str], peer: str) -> Iterator[dict[str, str]]:
    """Theirs first where there is one, then ours."""
    for case in rounds[0]:
        is_rate = case.startswith("disk-rate")
        unit, metric = ("GB/s", "gb_s") if is_rate else ("tok/s", "tok_s")
        value, reference = (median(r[case][side] for r in rounds) for side in (0, 1))
        row = base | {"suite": "disk", "case": case, "metric": metric, "unit": unit}
        against = "the disk's direct reads" if is_rate else f"{peer}, Q8_0, mapped"
        if not is_rate:
            theirs = {"program": peer, "commit": peer.split()[-1], "target": "", "value": figure(reference)}
            yield row | theirs | {"reference": "", "against": "", "ratio": ""}
        ratio = median(r[case][0] / r[case][1] for r in rounds)
        yield row | {
            "value": figure(value),
            "reference": figure(reference),
            "against": against,
            "ratio": f"{ratio:.4g}",
        }


def base_row(a: argparse.Namespace, models: Models) -> dict[str, str]:
    """What all of our rows say."""
    version = run([*shlex.split(a.localmoe), "--version"]).split()[-1]
    commit = run(["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=9", "HEAD"]).strip()
    cpus = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "program": f"localmoe {version}",
        "commit": commit,
        "machine": cpus[0],
        "cores": str(len(cpus)),
        "threads": str(a.threads),
        "target": models.isa,
        "model": f"{a.model.name} in {a.limit_gib:g} GiB",
    }


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's llama-bench")
    parser.add_argument("--gguf", type=Path, required=True, help="llama.cpp's model")
    parser.add_argument("--model", type=Path, required=True, help="localmoe's model, a folder")
    parser.add_argument("--csv", type=Path, required=True, help="rows are added to this file")
    parser.add_argument("--limit-gib", type=float, default=2.0, help="memory of each program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of each program")
    parser.add_argument("--prefix", default="", help="a command in front of both programs")
    parser.add_argument("--localmoe", default="localmoe", help="its command")
    return parser.parse_args()


def main() -> None:
    """Measures and writes."""
    a = parse_arguments()
    for path in (a.gguf, a.model, a.csv.parent):
        if not path.exists():
            sys.exit(f"there is no {path}")
    if a.csv.exists():
        read_rows(a.csv)
    try:
        limit = Limit(int(a.limit_gib * (1 << 30)))
    except OSError as error:
        sys.exit(f"no control group can be made ({error.strerror}): run this as root")
    try:
        models = Models(a, limit)
        rounds = [measure(models, a.model) for _ in range(a.rounds)]
    finally:
        limit.close()
    append(a.csv, list(rows_of(rounds, base_row(a, models), models.peer)))


if __name__ == "__main__":
    main()
