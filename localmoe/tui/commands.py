"""One table of what can be done: keys, the help page, the palette and what is typed behind a slash are made from it."""

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Command:
    """`noun: verb`, what it does, the key that does it, and the word that does it behind a slash."""

    id: str  # "chat.new": what a keymap names
    action: str  # of the chat screen, or "app.…"
    help: str
    key: str = ""  # as Textual writes keys; several with commas
    slash: str = ""  # "clear": /clear does it
    takes: str = ""  # what may stand behind that word, if anything: the action has a parameter for it
    is_of_prompt: bool = False  # its keys are the prompt's: no binding of the screen, no entry of the palette

    @property
    def title(self) -> str:
        """The palette's words: "chat: new"."""
        return self.id.replace(".", ": ")

    @property
    def usage(self) -> str:
        """What to type: "/set NAME VALUE"."""
        return f"/{self.slash} {self.takes}".rstrip()

    def binding(self) -> Binding:
        """The key binding; it wins over the prompt's own."""
        return Binding(self.key, self.action, self.help, id=self.id, priority=True)


def _prompt(name: str, help: str, key: str) -> Command:
    return Command(f"prompt.{name}", "", help, key, is_of_prompt=True)


COMMANDS = (
    _prompt("send", "Send", "enter"),
    _prompt("newline", "New line", "ctrl+j,shift+enter,alt+enter"),
    Command("prompt.editor", "open_editor", "Write in $EDITOR", "ctrl+g", "editor"),
    Command("answer.stop", "stop", "Stop the answer; what came stays", "escape"),
    Command("answer.copy", "copy_answer", "Copy the last answer; again: the one before", "ctrl+y", "copy"),
    Command("code.copy", "copy_code", "Copy the last block of code; again: the one before", "f6", "code"),
    Command("answer.again", "answer_again", "Answer again; the first answer is kept", "ctrl+r", "regen"),
    Command("question.edit", "edit_question", "Change the last question", "ctrl+up", "edit"),
    Command("question.copy", "copy_question", "Copy the last question"),
    Command("branch.next", "next_branch", "Show the next answer or question kept beside these", slash="branch"),
    Command("file.attach", "attach", "Attach a text file; @ in the prompt does too", slash="attach", takes="FILE"),
    Command("thoughts.toggle", "toggle_thoughts", "Open or close the thoughts", "ctrl+t", "thoughts"),
    Command("thinking.switch", "think", "Have answers thought about, or not", slash="think", takes="on|off"),
    Command("system.write", "system", "Tell the model who it is, in this chat", slash="system", takes="TEXT"),
    Command("parameter.set", "set", "Set temperature, top_p, … of this chat", slash="set", takes="NAME VALUE"),
    Command("panel.toggle", "toggle_panel", "Show or hide the engine panel", "f2", "panel"),
    Command("stats.show", "show_stats", "Show the figures of the last answer", slash="stats"),
    Command("chat.new", "new_chat", "Start a new chat", "ctrl+n", "clear"),
    Command("chat.save", "save", "Say where the chat is kept, or name it", slash="save", takes="TITLE"),
    Command("chat.export", "export", "Write the chat to a file: .md or .json", slash="export", takes="FILE"),
    Command("chats.open", "open_chats", "Find, open, rename or delete chats", "ctrl+o", "chats"),
    Command("tab.new", "new_tab", "Start a chat in a new tab; the others go on", "f8,alt+t", "new"),
    Command("tab.close", "close_tab", "Close this tab; with text in the prompt: delete a word", "ctrl+w", "close"),
    Command("tab.next", "step_tab(1)", "Show the next tab", "ctrl+pagedown"),
    Command("tab.previous", "step_tab(-1)", "Show the tab before", "ctrl+pageup"),
    Command("tab.go", "go_to_tab", "Show the tab with this number", slash="tab", takes="NUMBER"),
    Command("models.open", "app.open_models", "See, fetch, check and remove models", "f3", "models"),
    Command("doctor.open", "app.open_doctor", "See what this machine is and could run", "f4", "doctor"),
    Command("settings.open", "app.open_settings", "See and change the settings", "f5", "settings"),
    Command("chat.first", "go_to_end(True)", "Go to the first turn", "ctrl+home"),
    Command("chat.last", "go_to_end(False)", "Go to the last turn", "ctrl+end"),
    Command("model.choose", "app.choose_model", "Talk to another model", slash="model", takes="NAME"),
    Command("theme.choose", "app.choose_theme", "Choose the colours", slash="theme", takes="NAME"),
    Command("palette.open", "app.command_palette", "Find a command", "ctrl+p"),
    Command("keys.show", "show_keys", "Show keys and commands", "f1", "help"),
    Command("app.quit", "app.quit", "Leave localmoe", "ctrl+q", "quit"),
    Command("chat.page_up", "page(-1)", "Scroll the chat up", "pageup"),
    Command("chat.page_down", "page(1)", "Scroll the chat down", "pagedown"),
)

BINDINGS = [command.binding() for command in COMMANDS if command.key and not command.is_of_prompt]


def command_called(command_id: str) -> Command:
    """The command with this id."""
    return next(command for command in COMMANDS if command.id == command_id)
