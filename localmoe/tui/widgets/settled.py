"""Sizes that one layout settles."""

from typing import TYPE_CHECKING

from textual.containers import Horizontal
from textual.geometry import Size

if TYPE_CHECKING:
    from textual.widget import Widget as _Widget
else:
    _Widget = object  # styles are inherited from the first base that is a widget


class Settled(_Widget):
    """A widget without scroll bars. Textual lays all out once more when one has grown, which may bring bars."""

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)


class SettledRow(Settled, Horizontal):
    """What stands side by side in a turn."""
