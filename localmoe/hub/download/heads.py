"""The headers of a model's files, checked before the bulk of them is fetched: a wrong file is known at once."""

from collections.abc import Callable, Mapping
from pathlib import Path

from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import INDEX, SINGLE, Checkpoint, TensorInfo, TensorSpec, gather
from localmoe.hub.download.plan import DownloadPlan
from localmoe.hub.header import header_bytes, parse_header
from localmoe.hub.json_file import shown

HEAD_BYTES = 256 << 10  # what most headers fit in

Header = dict[str, TensorInfo]
Expected = Callable[[Mapping[str, object]], list[TensorSpec]]


def read_head(name: str, size: int, first_bytes: Callable[[int], bytes]) -> Header:
    """The tensors of a file of `size` bytes; `first_bytes(n)` gives its first n bytes. CheckpointError."""
    where, hint = f"shard {shown(name)}", _HINT
    length = header_bytes(first_bytes(8), size, where, hint)
    return parse_header(first_bytes(length)[8:], Path(name), size, where, hint)


def check_heads(plan: DownloadPlan, headers: dict[str, Header], expected: Expected | None) -> None:
    """CheckpointError unless headers, index and config.json belong together."""
    folder = plan.place.folder
    index = plan.index
    try:
        tensors = gather(index, headers, folder) if index is not None else headers[SINGLE]
        if expected is not None:
            Checkpoint(folder, plan.config, {}, tensors).validate(expected(plan.config))
    except CheckpointError as error:
        raise CheckpointError(error.message, _HINT) from error


def weight_files(plan: DownloadPlan) -> set[str]:
    """The paths of the files that have headers."""
    return set(plan.index.values()) if plan.index is not None else {SINGLE}


_HINT = (
    f"what the hub has does not fit together ({INDEX}, config.json, weights): choose another revision or repository."
)
