"""The last line: the keys that matter now, or why something did not happen."""

from textual.content import Content

from localmoe.tui.keymap import Keymap
from localmoe.tui.widgets.line import Line

_IDLE = (
    ("prompt.send", "send"),
    ("prompt.newline", "newline"),
    ("palette.open", "commands"),
    ("keys.show", "keys"),
    ("app.quit", "quit"),
)
_BUSY = (
    ("answer.stop", "stop"),
    ("thoughts.toggle", "thoughts"),
    ("panel.toggle", "panel"),
    ("keys.show", "keys"),
    ("app.quit", "quit"),
)
_TINY = (("prompt.send", "send"), ("keys.show", "keys"))
_TINY_BUSY = (("answer.stop", "stop"), ("keys.show", "keys"))
_TINY_WIDTH = 60


class Hints(Line):
    """Keys, or one notice until the next key."""

    DEFAULT_CSS = """
    Hints { height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    _said: tuple[Keymap, tuple[tuple[str, str], ...], str] | None = None

    def show_keys(self, keymap: Keymap, is_busy: bool, notice: str = "") -> None:
        """Draws the notice, or the keys where there is none."""
        choice = self._choice(is_busy)
        if (said := (keymap, choice, notice)) != self._said:
            self._said = said
            self.show(Content.styled(notice, "$text-accent") if notice else _keys(keymap, choice))

    def _choice(self, is_busy: bool) -> tuple[tuple[str, str], ...]:
        if 0 < self.app.size.width < _TINY_WIDTH:
            return _TINY_BUSY if is_busy else _TINY
        return _BUSY if is_busy else _IDLE


def _keys(keymap: Keymap, commands: tuple[tuple[str, str], ...]) -> Content:
    named = [(keymap.name(command), verb) for command, verb in commands]
    return Content(" · ").join([Content.assemble((key, "bold"), f" {verb}") for key, verb in named if key])
