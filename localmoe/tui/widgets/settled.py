"""Sizes that a layout has settled."""

from typing import TYPE_CHECKING

from textual.geometry import Size

if TYPE_CHECKING:
    from textual.widget import Widget as _Widget
else:
    _Widget = object  # styles are inherited from the first base that is a widget


class Settled(_Widget):
    """Part of a turn. Textual lays out once more whenever a widget has grown, though nothing else depends on these."""

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)
