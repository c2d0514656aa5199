"""Measure llama.cpp and localmoe on the same work, in turn, and add both's rows to a CSV file.

    python assets/bench/side_by_side.py --llama-bench PATH --gguf FILE --model FOLDER --csv FILE
        [--rounds 3] [--no-depth]

FILE and FOLDER hold a model of the same shape: Q8_0 for llama.cpp, FP8 for localmoe. A round is llama.cpp's prefill,
localmoe's prefill, llama.cpp's decode, localmoe's decode; figures are medians over the rounds, ratios medians of the
rounds' ratios. llama.cpp runs with each number of threads in the first round and with its best for the case in the
others. Its decode-128 begins with an empty context (tg64), which is a little less work than localmoe's.
A round takes about 10 minutes for a model of 4.4 GB on 2 cores; nothing else should run meanwhile.
Needs nothing but Python's standard library, and `localmoe` as a command.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

COLUMNS = "date,program,commit,machine,cores,threads,target,model,suite,case,metric,value,unit,reference,against,ratio"
CASES = {  # what llama-bench is asked for
    "prefill-512": ("-p", "512", "-n", "0"),
    "prefill-2048": ("-p", "2048", "-n", "0"),
    "decode-128": ("-p", "0", "-n", "64"),
    "decode-8192": ("-p", "0", "-n", "64", "-d", "8192"),
}
ADDED = "decode-8192-added"


class Peer:
    """llama-bench on one model. `rates[case]` are tokens per second, one for each round."""

    def __init__(self, tool: Path, gguf: Path, most_threads: int, *, with_depth: bool) -> None:
        self._tool = tool
        self._gguf = gguf
        self._threads = {case: range(1, most_threads + 1) for case in CASES}
        self.rates: dict[str, list[float]] = {}
        self.commit = ""
        self.has_depth = with_depth and "--n-depth" in run([str(tool), "--help"])

    @property
    def program(self) -> str:
        return f"llama.cpp {self.commit}"

    def threads(self, case: str) -> int:
        """The best number of them."""
        return self._threads[case][0]

    def measure(self, suite: str) -> None:
        """A round of `suite`."""
        for case in CASES:
            if case.startswith(suite) and (self.has_depth or "-d" not in CASES[case]):
                rates = {threads: self._rate(case, threads) for threads in self._threads[case]}
                best = max(rates, key=lambda threads: rates[threads])
                self._threads[case] = range(best, best + 1)
                self.rates.setdefault(case, []).append(rates[best])
                print(f"{self.program} {case}: {rates[best]:.1f} tok/s with {best} threads", file=sys.stderr)

    def _rate(self, case: str, threads: int) -> float:
        command = [str(self._tool), "-m", str(self._gguf), *CASES[case], "-t", str(threads), "-o", "json"]
        command += ["-r", "1" if "-d" in CASES[case] else "2"]
        (found,) = json.loads(run(command))
        self.commit = found["build_commit"]
        return float(found["avg_ts"])

    def rows(self, like: dict[str, str]) -> list[dict[str, str]]:
        """One for each case, on the machine of `like`."""
        base = like | {"program": self.program, "commit": self.commit, "model": self._gguf.name, "target": ""}
        base |= {"reference": "", "against": "", "ratio": ""}
        rows = []
        for case, rates in self.rates.items():
            threads = {"threads": str(self.threads(case))}
            rows.append(base | threads | of(case, "tok_s", median(rates), "tok/s"))
        if "decode-8192" in self.rates:
            pairs = zip(self.rates["decode-128"], self.rates["decode-8192"], strict=True)
            added_ms = median(1e3 / slower - 1e3 / faster for faster, slower in pairs)
            rows.append(base | {"threads": str(self.threads("decode-8192"))} | of(ADDED, "ms", added_ms, "ms"))
        return rows


class Ours:
    """`localmoe bench` on one model. `rows[case]` are its CSV rows, one for each round."""

    def __init__(self, command: list[str], model: Path, threads: int) -> None:
        self._command = [*command, "bench", "--model", str(model), "--threads", str(threads), "--json"]
        self.rows: dict[str, list[dict[str, str]]] = {}

    def measure(self, suite: str) -> None:
        """A round of `suite`."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.csv"
            run([*self._command, "--suite", suite, "--csv", str(file)])
            for row in read_rows(file):
                self.rows.setdefault(row["case"], []).append(row)
                print(f"{row['program']} {row['case']}: {row['value']} {row['unit']}", file=sys.stderr)

    def compared(self, peer: Peer) -> list[dict[str, str]]:
        """One row for each case; beside `peer` where it has the same case, beside what bench says otherwise."""
        rows = []
        for case, rounds in self.rows.items():
            values = [float(row["value"]) for row in rounds]
            row = rounds[-1] | {"value": figure(median(values))}
            if case in peer.rates:
                ratios = [ours / theirs for ours, theirs in zip(values, peer.rates[case], strict=True)]
                row |= {"reference": figure(median(peer.rates[case])), "against": f"{peer.program}, Q8_0"}
                row |= {"ratio": f"{median(ratios):.4g}"}
            elif rounds[-1]["reference"]:
                row |= {"reference": figure(median(float(row["reference"]) for row in rounds))}
                row |= {"ratio": f"{median(float(row['ratio']) for row in rounds):.4g}"}
            rows.append(row)
        return rows


def of(case: str, metric: str, value: float, unit: str) -> dict[str, str]:
    """A row's own columns."""
    return {"suite": case.partition("-")[0], "case": case, "metric": metric, "value": figure(value), "unit": unit}


def figure(value: float) -> str:
    """As bench writes them."""
    return f"{value:.6g}"


def run(command: list[str]) -> str:
    """What `command` prints; ends this program when it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def read_rows(file: Path) -> list[dict[str, str]]:
    """All rows of a CSV file with bench's columns; ends this program when it has others."""
    with file.open(newline="", encoding="utf-8", errors="replace") as text:
        if text.readline().rstrip("\r\n") != COLUMNS:
            sys.exit(f"{file} does not begin with the columns that bench writes: give another file")
        return list(csv.DictReader(text, COLUMNS.split(",")))


def append(file: Path, rows: list[dict[str, str]]) -> None:
    """Adds `rows` to `file`, which may be new."""
    is_new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, COLUMNS.split(","), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's llama-bench")
    parser.add_argument("--gguf", type=Path, required=True, help="llama.cpp's model")
    parser.add_argument("--model", type=Path, required=True, help="localmoe's model, a folder")
    parser.add_argument("--csv", type=Path, required=True, help="rows are added to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-depth", action="store_true", help="without llama.cpp's decode-8192: minutes of reading")
    parser.add_argument("--threads", type=int, default=2, help="localmoe's, and llama.cpp's at most")
    parser.add_argument("--localmoe", default="localmoe", help="its command")
    return parser.parse_args()


def main() -> None:
    """Measures and writes."""
    a = parse_arguments()
    if a.csv.exists():
        read_rows(a.csv)
    elif not a.csv.parent.is_dir():
        sys.exit(f"there is no folder {a.csv.parent}")
    for path in (a.gguf, a.model):
        if not path.exists():
            sys.exit(f"there is no {path}")
    peer = Peer(a.llama_bench, a.gguf, a.threads, with_depth=not a.no_depth)
    ours = Ours(shlex.split(a.localmoe), a.model, a.threads)
    for _ in range(a.rounds):
        for suite in ("prefill", "decode"):
            peer.measure(suite)
            ours.measure(suite)
    now = {"date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    rows = ours.compared(peer)
    append(a.csv, [row | now for row in (*peer.rows(rows[0]), *rows)])


if __name__ == "__main__":
    main()
