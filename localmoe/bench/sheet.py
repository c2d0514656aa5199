"""A CSV file that runs add their rows to: one row per figure, with all that it was measured on."""

import csv
import io
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import localmoe
from localmoe.bench.rows import Report, Row
from localmoe.errors import LocalmoeError, UsageError

COLUMNS = (
    "date",
    "program",
    "commit",
    "machine",
    "cores",
    "threads",
    "target",
    "model",
    "suite",
    "case",
    "metric",
    "value",
    "unit",
    "reference",
    "against",
    "ratio",
)
HINT = "give --csv a file in a folder that can be written"


class Sheet:
    """`file` may be new, empty, or one that earlier runs wrote; nothing in it is ever changed.

    Raises UsageError for a file that holds something else, LocalmoeError for one that cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            is_new = not file.exists()
            with file.open("ab"):
                pass
            if is_new:
                file.unlink()
                return
            with file.open("rb") as old:
                head = old.readline(4096)
        except OSError as error:
            raise _not_written(file, error) from error
        if head and head.rstrip(b"\r\n") != ",".join(COLUMNS).encode():
            raise UsageError(
                f"{file} does not begin with the columns that bench writes",
                "give --csv a new file, or one that an earlier run wrote",
            )

    def append(self, report: Report) -> None:
        """Adds the rows of `report`, all by one write."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        try:
            with self._file.open("a+b") as file:
                if (size := file.seek(0, io.SEEK_END)) == 0:
                    writer.writerow(COLUMNS)
                else:
                    file.seek(size - 1)
                    text.write("" if file.read(1) == b"\n" else "\n")
                writer.writerows(_values(report, row) for row in report.rows)
                file.write(text.getvalue().encode())
        except OSError as error:
            raise _not_written(self._file, error) from error


def commit_of(package: Path) -> str:
    """The commit of the checkout that `package` lies in, "-dirty" when what runs differs from it; else the version."""
    checkout = package.parent
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").exists()):
        return localmoe.__version__
    try:
        commit = _git(checkout, "rev-parse", "--short=9", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no", "--", package.name, "native")
    except (OSError, subprocess.SubprocessError):  # no git here
        return localmoe.__version__
    return commit + "-dirty" * bool(changed)


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _values(report: Report, row: Row) -> list[str]:
    values = {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "program": f"localmoe {localmoe.__version__}",
        "commit": commit_of(Path(localmoe.__file__).resolve().parent),
        "machine": report.machine["cpu"]["model"] or "unknown CPU",
        "cores": report.machine["limits"]["usable_cores"],
        "threads": report.num_threads,
        "target": row.isa,
        "model": None if row.suite == "kernels" else report.model,
        "suite": row.suite,
        "case": row.case,
        "metric": row.metric,
        "value": f"{row.value:.6g}",
        "unit": row.unit,
        "reference": None if row.reference is None else f"{row.reference:.6g}",
        "against": row.against,
        "ratio": None if row.ratio is None else f"{row.ratio:.4g}",
    }
    return ["" if values[name] is None else str(values[name]) for name in COLUMNS]


def _not_written(file: Path, error: OSError) -> LocalmoeError:
    return LocalmoeError(f"{file} cannot be written: {error.strerror}", HINT)
