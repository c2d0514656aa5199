"""The last line: the keys that matter now, or why something did not happen."""

from textual.content import Content

from localmoe.tui.widgets.line import Line

_IDLE = (("Enter", "send"), ("Ctrl+J", "newline"), ("Ctrl+P", "commands"), ("F1", "keys"), ("Ctrl+Q", "quit"))
_BUSY = (("Esc", "stop"), ("Ctrl+T", "thoughts"), ("F2", "panel"), ("F1", "keys"), ("Ctrl+Q", "quit"))


class Hints(Line):
    """Keys, or one notice until the next key."""

    DEFAULT_CSS = """
    Hints { height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def show_keys(self, is_busy: bool, notice: str = "") -> None:
        """Draws the notice, or the keys where there is none."""
        self.show(Content.styled(notice, "$text-accent") if notice else _keys(_BUSY if is_busy else _IDLE))


def _keys(keys: tuple[tuple[str, str], ...]) -> Content:
    shown = [Content.assemble((key, "bold"), f" {verb}") for key, verb in keys]
    return Content(" · ").join(shown)
