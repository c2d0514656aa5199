"""The README's table of speeds, made from the newest rows of each machine's file here.

    python assets/bench/table.py            # prints it
    python assets/bench/table.py --write    # puts it into README.md

To measure again: `localmoe bench --csv FILE`, then side_by_side.py and under_limit.py with the same FILE.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
BEGIN, END = "<!-- made by assets/bench/table.py from the CSV files beside it -->", "<!-- end of the table -->"
MACHINES = {  # two cores of each
    "epyc-zen3": "EPYC, Zen 3",
    "epyc-zen4": "EPYC, Zen 4",
    "epyc-zen5": "EPYC, Zen 5",
    "xeon-avx512": "Xeon without AMX",
    "xeon-amx": "Xeon with AMX",
}
NUM_RUNS = 3  # the last ones count

Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Line:
    """Which rows a line is about, in words; how the reference begins that they are to have; what of them it shows."""

    case: str
    what: str
    against: str
    aim: str = ""
    shows: Literal["ratio", "value", "reference"] = "ratio"


STREAM, PEAK, PEER = "streaming read", "FMA peak", "llama.cpp"
LINES = (
    Line("gemv", "the fastest streaming read, GB/s", STREAM, shows="reference"),
    Line("gemm-48", "FMA peak, GFLOP/s", PEAK, shows="reference"),
    Line("load", "direct reads of the disk, GB/s", "the disk's direct reads", shows="reference"),
    Line("prefill-512", "a prompt of 512 tokens, tok/s", PEER, shows="value"),
    Line("prefill-2048", "a prompt of 2,048 tokens, tok/s", PEER, shows="value"),
    Line("decode-128", "an answer after 128 tokens, tok/s", PEER, shows="value"),
    Line("prefill-512", "a prompt of 512 tokens / llama.cpp's", PEER, "1.3 or more"),
    Line("prefill-2048", "a prompt of 2,048 tokens / llama.cpp's", PEER, "1.3 or more"),
    Line("decode-128", "an answer after 128 tokens / llama.cpp's", PEER, "1.4 or more"),
    Line("decode-8192-added", "time that 8K of context adds / its FLOPs at FMA peak", "attention FLOPs", "1.6 or less"),
    Line("gemv", "FP8 matrix, 1 token / streaming read", STREAM, "0.90 or more"),
    Line("gemv-1408", "the same with 1,408 columns", STREAM),
    Line("gemv-200", "the same with 200 columns", STREAM),
    Line("gemv-bf16", "BF16 matrix, 1 token / streaming read", STREAM),
    Line("gemv-vs-torch", "FP8 matrix, 1 token / torch's linear in BF16", "torch bf16"),
    Line("gemv-vs-torch-fp32", "the same / torch's linear in FP32", "torch fp32"),
    Line("moe-1", "DeepSeek-V3's experts, 1 token / streaming read", STREAM, "0.85 or more"),
    Line("moe-2", "the same, 2 tokens", STREAM, "0.80 or more"),
    Line("moe-4", "the same, 4 tokens", STREAM, "0.80 or more"),
    Line("moe-8", "the same, 8 tokens", STREAM, "0.80 or more"),
    Line("moe-1-bf16", "the same in BF16, 1 token", STREAM),
    Line("gemm-48", "FP8 matrix, 48 tokens / FMA peak", PEAK, "0.65 or more"),
    Line("gemm-256", "FP8 matrix, 256 tokens / FMA peak", PEAK, "0.72 or more"),
    Line("attention-4k", "attention of a prompt of 4,096 / FMA peak", PEAK, "0.50 or more"),
    Line("attend-4k", "attention of one token over 4,096 / FMA peak", PEAK),
    Line("load", "loading weights / direct reads", "the disk's direct reads", "0.90 or more"),
    Line("load-peak", "memory beside the weights meanwhile / 1 GiB", "allowed", "1 or less"),
    Line("slp-transfer", "streamed prompt / its longer side, a quarter of it compute", "the longer", "1.08 or less"),
    Line("slp-balanced", "the same, half of it compute", "the longer", "1.15 or less"),
    Line("slp-compute", "the same, most of it compute", "the longer", "1.08 or less"),
    Line("disk-prefill-128", "a prompt of 128 tokens with 2 GiB of memory / llama.cpp's", PEER, "1.5 or more"),
    Line("disk-prefill-512", "the same, 512 tokens", PEER, "1.5 or more"),
    Line("disk-decode", "an answer with 2 GiB of memory / llama.cpp's", PEER, "1.5 or more"),
    Line("disk-rate-128", "bytes of the experts meanwhile / direct reads", "the disk's direct reads", "0.90 or more"),
    Line("mixed-tpot", "time of a token beside a prompt / what its share allows", "decode alone", "1.15 or less"),
    Line("mixed-prefill", "speed of that prompt / what its share allows", "prefill alone", "0.87 or more"),
    Line("preempt-p99", "wait of 99 of 100 urgent tiles / the longest tile", "the longest bulk tile", "1 or less"),
    Line("goodput-vs-exclusive", "requests within targets / whole prompts first", "", "1.2 or more"),
    Line("goodput-vs-chunked", "the same / chunks in one loop", "", "1.2 or more"),
    Line("goodput-vs-split", "the same / half of the cores each", "", "1.2 or more"),
    Line("tui-overhead", "speed of an answer in the chat / without a screen", "the same answer", "0.97 or more"),
    Line("tui-echo", "a key typed meanwhile shows after, ms", "what is allowed", "50 or less", shows="value"),
    Line("help", "`localmoe --help` / a bare typer program's", "a bare typer", "1.3 or less"),
    Line("first-paint", "first paint of the chat / a bare Textual program's", "a bare Textual", "1.5 or less"),
)


def rows_of(name: str) -> Rows:
    """A machine's rows, oldest first."""
    with (HERE / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: row["date"])


def table(machines: Mapping[str, Rows]) -> str:
    """Markdown: a column for each machine of `machines`, by its heading, and a line for each case that one has."""
    cells = [[_cell(rows, line) for rows in machines.values()] for line in LINES]
    lines = [[line.what, line.aim, *found] for line, found in zip(LINES, cells, strict=True) if any(found)]
    head = ["", "aim", *machines]
    origins = [["kernels, commits", "", *(_origin(rows) for rows in machines.values())]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *origins, *lines]) + "\n"


def _of(rows: Rows, line: Line) -> list[Mapping[str, str]]:
    """Our last rows of that line."""
    ours = [row for row in rows if row["program"].startswith("localmoe") and row["case"] == line.case and row["ratio"]]
    return [row for row in ours if row["against"].startswith(line.against)][-NUM_RUNS:]


def _cell(rows: Rows, line: Line) -> str:
    found = _of(rows, line)
    if not found:
        return ""
    sign = "> " if all(row["against"].startswith("more than") for row in found) else ""
    return sign + _figure(median(float(row[line.shows]) for row in found))


def _origin(rows: Rows) -> str:
    """Kernel targets of what is shown, and its oldest and newest commit."""
    shown = sorted((row for line in LINES for row in _of(rows, line)), key=lambda row: row["date"])
    targets = dict.fromkeys(row["target"] for row in shown if row["target"])
    commits = dict.fromkeys(row["commit"][:7] for row in (shown[0], shown[-1]))
    return f"{', '.join(targets)}; {' to '.join(commits)}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def in_readme(text: str, new: str) -> str:
    """`text` with `new` between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}{END}{after}"


def main() -> None:
    """Prints or writes."""
    new = table({heading: rows_of(name) for name, heading in MACHINES.items()})
    if "--write" in sys.argv[1:]:
        README.write_text(in_readme(README.read_text(encoding="utf-8"), new), encoding="utf-8")
    else:
        print(new, end="")


if __name__ == "__main__":
    main()
