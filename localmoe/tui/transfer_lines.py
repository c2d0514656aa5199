"""A transfer in lines: one for each file under way and one for the total."""

from localmoe.hub.download.progress import FileProgress, Pulling
from localmoe.tui.figures import estimate, gauge, percent, size
from localmoe.tui.printable import printable

_BAR = 12  # cells
_ROOMY = 76  # columns from which there is a bar


def lines(event: Pulling, width: int, height: int) -> list[str]:
    """The board, no line wider than `width` cells, no more than `height` lines."""
    files = sorted(event.files, key=lambda file: file.name)[: max(0, height - 1)]
    names = max((len(file.name) for file in files), default=0)
    total = f"{event.num_done} of {event.num_files} files"
    room = _name_room(width, max(names, len(total)))
    return [*(_file_line(file, width, room) for file in files), _total_line(event, total, width, room)]


def _name_room(width: int, longest: int) -> int:
    """Cells for names: what the figures leave."""
    return max(8, min(longest, width - (26 + _BAR + 16 if width >= _ROOMY else 31)))


def _file_line(file: FileProgress, width: int, room: int) -> str:
    rate = _rate(file.rate_bytes_s) if file.state == "fetching" else file.state
    return _line(printable(file.name), file.done_bytes, file.total_bytes, rate, width, room)


def _total_line(event: Pulling, total: str, width: int, room: int) -> str:
    rate = _rate(event.rate_bytes_s)
    left = estimate(event.eta_s)
    line = _line(total, event.done_bytes, event.total_bytes, rate, width, room)
    longer = f"{line}  {left}" if left else line
    return longer if len(longer) <= width else _line(total, event.done_bytes, event.total_bytes, left, width, room)


def _line(name: str, done: int, total: int, rate: str, width: int, room: int) -> str:
    share = done / total if total else 1.0
    bar = "".join(gauge(share, _BAR)) + "  " if width >= _ROOMY else ""
    line = f"{_shortened(name, room):<{room}}  {bar}{_of(done, total):<20} {rate}".rstrip()
    if len(line) > width:
        narrow = max(4, width - 6 - len(rate))
        line = f"{_shortened(name, narrow):<{narrow}} {percent(share)} {rate}"
    return line[:width].rstrip()


def _rate(bytes_s: float) -> str:
    return f"{size(round(bytes_s))}/s" if bytes_s else ""


def _of(done: int, total: int) -> str:
    """3.1 of 4.3 GB."""
    one, other = size(done), size(total)
    value, _, unit = one.partition(" ")
    return f"{value} of {other}" if unit == other.partition(" ")[2] else f"{one} of {other}"


def _shortened(name: str, room: int) -> str:
    """model-00001-of-000163.safetensors -> model-00001-of-000163 -> model-00001-…: shards differ in their numbers."""
    name = name if len(name) <= room else name.removesuffix(".safetensors")
    return name if len(name) <= room else name[: room - 1] + "…"
