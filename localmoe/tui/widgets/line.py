"""Text in a place of fixed size: a new text never moves its neighbours."""

from textual.content import Content
from textual.widgets import Static

from localmoe.tui.widgets.settled import Settled


class Line(Settled, Static):
    """Draws only what changed, and without a new layout: the figures change many times a second."""

    def __init__(self, content: str | Content = "", *, id: str | None = None, classes: str = "") -> None:
        super().__init__(content, id=id, classes=classes, markup=False)
        self._shown = content if isinstance(content, Content) else Content(content)

    def show(self, content: Content) -> None:
        """Draws `content` where it differs from what is there."""
        if not content.is_same(self._shown):
            fits = self._has_width_for(content) and content.plain.count("\n") == self._shown.plain.count("\n")
            self._shown = content
            self.update(content, layout=not fits)

    def _has_width_for(self, content: Content) -> bool:
        return content.cell_length == self._shown.cell_length or not self.styles.is_auto_width
