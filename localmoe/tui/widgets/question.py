"""A question to try: a click sends it, and so does Enter after Tab."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static


class Question(Static, can_focus=True):
    """One line that can be picked."""

    DEFAULT_CSS = """
    Question { height: auto; width: auto; max-width: 100%; padding: 0 1; color: $text-primary; }
    Question:hover { background: $boost; }
    Question:focus { background: $primary 25%; text-style: bold; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "pick", "Ask this", id="question.pick", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    class Picked(Message):
        """This is what the user wants to ask."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, text: str) -> None:
        super().__init__(f"› {text}", markup=False)
        self._text = text

    def on_click(self) -> None:
        self.action_pick()

    def action_pick(self) -> None:
        self.post_message(self.Picked(self._text))
