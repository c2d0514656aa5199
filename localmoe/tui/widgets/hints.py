"""The last line: the keys that matter now, or why something did not happen."""

from textual.content import Content

from localmoe.tui.widgets.line import Line

_IDLE = (("Enter", "send"), ("Ctrl+J", "newline"), ("Ctrl+P", "commands"), ("F1", "keys"), ("Ctrl+Q", "quit"))
_BUSY = (("Esc", "stop"), ("Ctrl+T", "thoughts"), ("F2", "panel"), ("F1", "keys"), ("Ctrl+Q", "quit"))
_TINY = (("Enter", "send"), ("F1", "keys"))
_TINY_BUSY = (("Esc", "stop"), ("F1", "keys"))
_TINY_WIDTH = 60


class Hints(Line):
    """Keys, or one notice until the next key."""

    DEFAULT_CSS = """
    Hints { height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def show_keys(self, is_busy: bool, notice: str = "") -> None:
        """Draws the notice, or the keys where there is none."""
        self.show(Content.styled(notice, "$text-accent") if notice else _keys(self._choice(is_busy)))

    def _choice(self, is_busy: bool) -> tuple[tuple[str, str], ...]:
        if 0 < self.app.size.width < _TINY_WIDTH:
            return _TINY_BUSY if is_busy else _TINY
        return _BUSY if is_busy else _IDLE


def _keys(keys: tuple[tuple[str, str], ...]) -> Content:
    shown = [Content.assemble((key, "bold"), f" {verb}") for key, verb in keys]
    return Content(" · ").join(shown)
