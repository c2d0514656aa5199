"""An answer's tokens, as they come, to text of the thought and of the answer."""

from localmoe.chat.face import Tokenizer
from localmoe.events import Channel

OPEN, CLOSE = "<think>", "</think>"
NEWLINES = "\r\n"

Said = list[tuple[Channel, str]]


class Splitter:
    """Takes one token id at a time; says which text is certain now, and whether it is thought or answer.

    A thought begins where the prompt left one open, or at a <think> before any answer. Everything up to </think> is
    thought, to the end if none comes. Marks are recognised by their ids, or by their text where they are no tokens.
    """

    def __init__(self, tokenizer: Tokenizer, starts_in_thought: bool = False) -> None:
        self.num_thought_tokens = 0  # marks not counted
        self._text = tokenizer.text_stream()
        self._hidden_ids = tokenizer.special_ids
        ids = tokenizer.token_id(OPEN), tokenizer.token_id(CLOSE)
        self._marks = {} if None in ids else dict(zip(ids, (OPEN, CLOSE), strict=True))
        self._tail = ""  # may turn out to be the beginning of a mark, where marks are text
        self._in_thought = starts_in_thought
        self._thought, self._answer = _Thought(), _Answer()

    @property
    def in_thought(self) -> bool:
        """Whether the next token belongs to a thought."""
        return self._in_thought

    @property
    def thought(self) -> str:
        """The thought so far, without the newlines around it."""
        return "".join(self._thought.shown)

    @property
    def answer(self) -> str:
        """The answer so far; complete after flush()."""
        return "".join(self._answer.shown)

    def feed(self, token_id: int) -> Said:
        """The text that `token_id` completes; special tokens have none."""
        mark = self._marks.get(token_id)
        if mark is not None:
            return self._take(self._text.flush()) + self._turn(mark)
        if token_id in self._hidden_ids:
            return self._take(self._text.flush())
        self.num_thought_tokens += self._in_thought
        return self._take(self._text.feed(token_id))

    def flush(self) -> Said:
        """What was held back for tokens that never came."""
        said = self._take(self._text.flush()) + self._put(self._tail)
        self._tail = ""
        return said + self._answer.release()

    def _take(self, text: str) -> Said:
        return self._put(text) if self._marks else self._search(text)

    def _put(self, text: str) -> Said:
        return self._thought.add(text) if self._in_thought else self._answer.add(text)

    def _turn(self, mark: str) -> Said:
        """A mark came: it changes sides, or says nothing where it changes nothing, or is just a word of the text."""
        if mark == CLOSE and self._in_thought:
            self._in_thought = False
            self._answer.follow_thought()
        elif mark == OPEN and not self._in_thought and not self._answer.shown:
            self._in_thought = True
            self._answer.follow_thought()
        elif (self._thought if self._in_thought else self._answer).shown:
            return self._put(mark)
        return []

    def _search(self, text: str) -> Said:
        """Looks for the mark that matters now and keeps back what could still become it."""
        self._tail += text
        said: Said = []
        while mark := self._expected():
            before, found, after = self._tail.partition(mark)
            if not found:
                break
            self._tail = after
            said += self._put(before) + self._turn(mark)
        keep = _overlap(self._tail, mark)
        ready, self._tail = self._tail[: len(self._tail) - keep], self._tail[len(self._tail) - keep :]
        return said + self._put(ready)

    def _expected(self) -> str:
        if self._in_thought:
            return CLOSE
        begun = self._tail.lstrip()
        return "" if self._answer.shown or not (begun.startswith(OPEN) or OPEN.startswith(begun)) else OPEN


class _Thought:
    """Text without the newlines around it: those that follow are kept back until more text comes."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self._held = ""

    def add(self, text: str) -> Said:
        text = self._held + text if self.shown else text.lstrip(NEWLINES)
        body = text.rstrip(NEWLINES)
        self._held = text[len(body) :]
        return _show(self.shown, "thought", body)


class _Answer:
    """Text whose leading white space waits for a first word: until then a thought may still begin."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self._held = ""
        self._after_thought = False

    def add(self, text: str) -> Said:
        if not self.shown:
            text = self._held + text
            text = text.lstrip(NEWLINES) if self._after_thought else text
            if not text.strip():
                self._held = text
                return []
            self._held = ""
        return _show(self.shown, "answer", text)

    def follow_thought(self) -> None:
        """Forgets white space before a thought; drops the newlines after it."""
        self._after_thought = True
        self._held = self._held if self.shown else ""

    def release(self) -> Said:
        """The white space that no word followed."""
        held, self._held = self._held, ""
        return _show(self.shown, "answer", held)


def _show(shown: list[str], channel: Channel, text: str) -> Said:
    if not text:
        return []
    shown.append(text)
    return [(channel, text)]


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that begins `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)
