"""What a check found, in words."""

from localmoe.hub.amount import amount
from localmoe.hub.json_file import shown
from localmoe.hub.verify import Report


def check_text(name: str, report: Report) -> str:
    """A line for each file that is damaged, or one that says what is right."""
    lines = [shown(one) for one in report.findings]
    count = f"{report.num_files} files, {amount(report.num_bytes)}"
    if report.is_right and not report.unknown:
        lines.append(f"{name}: {count}: checksums and structure are right.")
    elif report.is_right and len(report.unknown) == report.num_files:
        lines.append(f"{name}: {count}: the structure is right; nothing here tells their checksums.")
    elif report.is_right:
        lines.append(f"{name}: {count}: right, but nothing here tells the checksums of {len(report.unknown)} of them.")
    return "\n".join(lines) + "\n"
