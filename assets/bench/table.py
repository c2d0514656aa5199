"""The README's table of speeds, made from the newest rows of results.csv.

    python assets/bench/table.py            # prints it
    python assets/bench/table.py --write    # puts it into README.md

To measure again: `localmoe bench --suite kernels,load --csv assets/bench/results.csv`, then side_by_side.py.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
RESULTS = HERE / "results.csv"
BEGIN, END = "<!-- made by assets/bench/table.py from assets/bench/results.csv -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Line:
    """Which rows a line is about, in words, and how the reference begins that they are to have."""

    case: str
    what: str
    against: str


LINES = (
    Line("gemv", "FP8 matrix times one token", "streaming read"),
    Line("gemv-1408", "the same with 1,408 columns", "streaming read"),
    Line("gemv-200", "the same with 200 columns", "streaming read"),
    Line("gemv-bf16", "BF16 matrix times one token", "streaming read"),
    Line("gemv-vs-torch", "FP8 matrix times one token", "torch bf16"),
    Line("gemv-vs-torch-fp32", "FP8 matrix times one token", "torch fp32"),
    Line("moe-1", "DeepSeek-V3's experts, 1 token", "streaming read"),
    Line("moe-2", "DeepSeek-V3's experts, 2 tokens", "streaming read"),
    Line("moe-4", "DeepSeek-V3's experts, 4 tokens", "streaming read"),
    Line("moe-8", "DeepSeek-V3's experts, 8 tokens", "streaming read"),
    Line("moe-1-bf16", "the same in BF16, 1 token", "streaming read"),
    Line("gemm-48", "FP8 matrix times 48 tokens", "FMA peak"),
    Line("gemm-256", "FP8 matrix times 256 tokens", "FMA peak"),
    Line("attention-4k", "attention of a prompt of 4,096 tokens", "FMA peak"),
    Line("attend-4k", "attention of one token over 4,096", "FMA peak"),
    Line("prefill-512", "reading a prompt of 512 tokens", "llama.cpp"),
    Line("prefill-2048", "reading a prompt of 2,048 tokens", "llama.cpp"),
    Line("decode-128", "answering after 128 tokens", "llama.cpp"),
    Line("decode-8192", "answering after 8,192 tokens", "llama.cpp"),
    Line("decode-8192-added", "what 8K of context adds to a token's time (less is better)", "attention FLOPs"),
    Line("load", "loading weights", "the disk's direct reads"),
    Line("load-peak", "memory beside the weights while they load (less is better)", "allowed"),
)


def newest(rows: list[dict[str, str]], line: Line) -> dict[str, str] | None:
    """Our last row of that line."""
    ours = (row for row in reversed(rows) if row["program"].startswith("localmoe") and row["case"] == line.case)
    return next((row for row in ours if row["against"].startswith(line.against)), None)


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: what it was measured on, then a line for each row that there is."""
    found = [(line, row) for line in LINES if (row := newest(rows, line))]
    if not found:
        return "Nothing has been measured yet.\n"
    head = ["| what | localmoe | beside it | | ratio |", "|---|---|---|---|---|"]
    return "\n".join([*_origins([row for _, row in found]), "", *head, *(_line(*pair) for pair in found)]) + "\n"


def _origins(rows: list[dict[str, str]]) -> Iterator[str]:
    """Which machine, when, at which commit, with which model: all that occur."""
    machines = _all(f"{row['machine']}, {row['cores']} cores, {row['threads']} threads" for row in rows)
    targets = _all(row["target"] for row in rows)
    models = _all(row["model"] for row in rows)
    dates = _all(row["date"][:10] for row in rows)
    commits = _all(row["commit"] for row in rows)
    yield f"Measured on {machines}; {targets} kernels; {dates}, commit {commits}; whole models: {models or 'none'}."


def _all(values: Iterator[str]) -> str:
    return " and ".join(value for value in dict.fromkeys(values) if value)


def _line(line: Line, row: dict[str, str]) -> str:
    value, reference = (f"{_figure(float(row[name]))} {row['unit']}" for name in ("value", "reference"))
    return f"| {line.what} | {value} | {reference} | {row['against']} | {float(row['ratio']):.2f} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def in_readme(text: str, new: str) -> str:
    """`text` with `new` between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}{END}{after}"


def main() -> None:
    """Prints or writes."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        new = table(list(csv.DictReader(file)))
    if "--write" in sys.argv[1:]:
        README.write_text(in_readme(README.read_text(encoding="utf-8"), new), encoding="utf-8")
    else:
        print(new, end="")


if __name__ == "__main__":
    main()
