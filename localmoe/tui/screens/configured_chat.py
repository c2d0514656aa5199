"""What belongs to one chat beside its turns: system prompt, parameters, name, figures; and what is copied of it."""

from dataclasses import replace

from textual import work

from localmoe.chat.history.parameters import PARAMETERS
from localmoe.errors import LocalmoeError, UsageError
from localmoe.settings import RULES
from localmoe.tui import figures
from localmoe.tui.away import away
from localmoe.tui.copying import Copies, code_in, texts_of
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.screens.kept_chat import KeptChatScreen
from localmoe.tui.widgets.prompt import Prompt
from localmoe.tui.widgets.transcript import Transcript

_NONE = ("none", "off", "default", "-")


class ConfiguredChatScreen(KeptChatScreen):
    """The commands that need no engine."""

    def __init__(self, kept: Kept, keymap: Keymap | None = None) -> None:
        super().__init__(kept, keymap)
        self._copies = Copies()

    # System prompt and parameters

    def action_system(self, text: str = "") -> None:
        """Another system prompt; without a text the present one comes to the prompt."""
        if not text:
            self.offer_command(f"/system {self.kept.chat.system}")
            return
        wanted = "" if text.lower() in _NONE else text
        self.kept.set_system(wanted)
        self.conversation = self.conversation.with_system(wanted)
        self.recount()
        counted = f"{len(wanted):,} characters, from the next answer on. /system none takes it away"
        self.tell(f"The system prompt of this chat: {counted}" if wanted else "This chat has no system prompt now")

    def action_set(self, text: str = "") -> None:
        """Another value of a parameter; without one the values in force are shown."""
        name, _, raw = text.replace("=", " ", 1).partition(" ")
        if not name:
            self._show_parameters()
            return
        try:
            self.kept.set(name, _parameter(name, raw.strip()))
        except UsageError as error:
            self.tell(error.message, error.hint)
        else:
            self.tell(f"{name}: {_value(getattr(self.kept.settings, name))}, from {self.kept.origin(name)}")

    def action_think(self, text: str = "") -> None:
        """Whether answers are thought about; without a word the next of on, off and the model's way."""
        following = {None: "on", True: "off", False: "default"}
        self.action_set(f"think {text or following[self.kept.settings.think]}")

    def _show_parameters(self) -> None:
        from localmoe.tui.screens.page import PageScreen, table

        settings = self.kept.settings
        rows = [(name, f"{_value(getattr(settings, name))}, from {self.kept.origin(name)}") for name in PARAMETERS]
        note = "/set NAME VALUE gives this chat its own, /set NAME default takes it back."
        self.app.push_screen(PageScreen("Parameters of this chat", [table(rows)], note))

    # Its place and name

    @work
    async def action_save(self, title: str = "") -> None:
        """Chats are kept as they happen: says where, or gives it a name."""
        chat = self.kept.chat
        if not self.kept.is_on:
            self.tell("This chat is not kept: localmoe was started with --no-save", "/export writes it to a file")
        elif not self.conversation.num_turns:
            self.tell("Nothing was said yet: the chat is kept from its first question on")
        elif not title:
            self.tell(
                f"This chat is kept, as everything you send: {chat.id}", f"/export or localmoe chats show {chat.id}"
            )
        elif await self._try(self.kept.read(lambda history: history.rename(chat, title))):
            self.tell(f"This chat is called {title} now")

    @work
    async def action_export(self, name: str = "") -> None:
        """Writes the chat to a new file."""
        from localmoe.tui.exporting import exported, exported_turns, file_for, write

        chat, is_kept = self.kept.chat, self.kept.is_on
        first = next((m.text for m in self.conversation.messages if m.role == "user"), "")
        if not first:
            self.tell("Nothing was said yet: there is nothing to export")
            return
        try:
            title = (await self.kept.read(lambda history: history.chat(chat.id))).title if is_kept else first
            path = file_for(name, title)
            if is_kept:
                text = await self.kept.read(lambda history: exported(history, chat, path))
            else:
                text = exported_turns(replace(chat, title=title), self.query_one(Transcript).turns, path)
            await away(lambda: write(path, text))
        except LocalmoeError as error:
            self.tell(error.message, error.hint)
        else:
            self.tell(f"Written to {path.resolve()}")

    async def _try(self, reading: object) -> bool:
        try:
            await reading  # type: ignore[misc]
        except LocalmoeError as error:
            self.tell(error.message, error.hint)
            return False
        return True

    # Its figures

    def action_show_stats(self) -> None:
        from localmoe.tui.screens.page import PageScreen, table

        stats = self.readings.stats
        if not stats:
            self.tell("There are no figures yet: they come with the first answer")
            return
        rows = [
            ("Prompt", f"{stats.prompt_tokens:,} tok, {stats.cached_tokens:,} of them cached"),
            ("First token", f"after {figures.seconds(stats.ttft_s)}"),
            ("Prefill", figures.rate(stats.prefill_tok_s)),
            ("Answer", f"{stats.completion_tokens:,} tok, {stats.thought_tokens:,} of them thought"),
            ("Decode", figures.rate(stats.decode_tok_s)),
            ("Context", f"{self.readings.context_tokens:,} of {stats.context_limit:,} tok"),
            (
                "Left out",
                f"{self.readings.unread_turns} turns that did not fit" if self.readings.unread_turns else "nothing",
            ),
        ]
        self.app.push_screen(PageScreen("The last answer", [table(rows)]))

    # Copying

    def action_copy_answer(self) -> None:
        self._copy("answer", self._answers())

    def action_copy_question(self) -> None:
        self._copy("question", texts_of(self.conversation, "user"))

    def action_copy_code(self) -> None:
        self._copy("block of code", code_in(self._answers()))

    def copy(self, text: str, which: str) -> None:
        """To the clipboard, and says so."""
        self.app.copy_to_clipboard(text)
        self.tell(f"Copied {which}: {len(text):,} character{'s' * (len(text) != 1)}")

    def _copy(self, kind: str, texts: list[str]) -> None:
        if found := self._copies.next(kind, texts):
            self.copy(*found)
        else:
            self.tell(f"There is no {kind} to copy yet")

    def _answers(self) -> list[str]:
        return texts_of(self.conversation, "assistant", self.query_one(Transcript).unfinished_text)

    # What the others need

    def tell(self, message: str, hint: str = "") -> None:
        """A remark at the edge of the screen, for some seconds."""
        self.notify(hint or message, title=message if hint else "", markup=False)

    def offer_command(self, text: str) -> None:
        """Puts a command that needs more words into the prompt, if that is free."""
        prompt = self.query_one(Prompt)
        if prompt.text.strip():
            self.tell(f"The prompt is not empty: send or clear it first, then {text.split()[0]}")
        else:
            prompt.put(text)
            prompt.focus()


def _parameter(name: str, raw: str) -> object:
    """The value that was typed; None gives it back. UsageError names what is allowed."""
    if name not in PARAMETERS:
        raise UsageError(f"A chat has no parameter {name}", "It has " + ", ".join(PARAMETERS))
    if raw.lower() in (*_NONE, "") and not (name == "think" and raw.lower() == "off"):
        return None
    try:
        return RULES[name].read(raw)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name} is {RULES[name].allowed}, not {raw}", f"/set {name} default takes it back") from None


def _value(value: object) -> str:
    if value is None:
        return "the default"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
