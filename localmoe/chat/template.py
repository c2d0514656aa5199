"""Which template a model gets: a family's by name, or the one that its folder's chat_template proves to be."""

from typing import Any

from localmoe.chat.face import Template, Tokenizer
from localmoe.chat.families import FAMILIES, R1, V3, V31, Family, FamilyTemplate
from localmoe.chat.jinja import MODES, JinjaTemplate, variables
from localmoe.chat.message import Conversation, Message
from localmoe.chat.sandbox import Outcome, render
from localmoe.errors import UnsupportedModelError, UsageError

__all__ = ["Template", "guess_template", "template_for"]


def template_for(name: str, tokenizer: Tokenizer) -> Template:
    """The template that the catalogue names; "jinja" is the model's own. UsageError for an unknown name."""
    if name == "jinja":
        return JinjaTemplate(tokenizer, "the model's own chat_template, as the catalogue says")
    if name not in FAMILIES:
        raise UsageError(f"There is no template {name!r}.", f"known: {', '.join(FAMILIES)}, jinja.")
    return FamilyTemplate(FAMILIES[name], tokenizer, f"the {name} format, as the catalogue says")


def guess_template(tokenizer: Tokenizer, config: dict[str, Any]) -> Template:
    """The template for a folder that no catalogue knows. `config` is its config.json.

    A family's format where the folder's chat_template writes every probe exactly so, else that chat_template itself.
    """
    source = tokenizer.chat_template
    if source is None:
        return _by_marks(tokenizer, config)
    written = _probe(source, tokenizer)
    for family in (V31, V3, R1):
        if _has_marks(family, tokenizer) and written == _expected(family):
            return FamilyTemplate(family, tokenizer, f"the {family.name} format: chat_template writes exactly that")
    return JinjaTemplate(tokenizer, "the model's own chat_template: it is none of the known formats")


def _by_marks(tokenizer: Tokenizer, config: dict[str, Any]) -> Template:
    family = next((f for f in (V31, V3) if _has_marks(f, tokenizer)), None)
    if family is None or not str(config.get("model_type", "")).startswith("deepseek"):
        raise UnsupportedModelError(
            "The model has no chat template: nothing says how a conversation is written down for it.",
            "take the tokenizer_config.json or chat_template.jinja of an instruct or chat model.",
        )
    return FamilyTemplate(family, tokenizer, f"the {family.name} format, guessed: no chat_template, DeepSeek's tokens")


def _has_marks(family: Family, tokenizer: Tokenizer) -> bool:
    return all(tokenizer.token_id(mark) is not None for mark in family.marks)


# Each shows one rule: the first question; a system prompt; an earlier answer and its thought, with a second mark in it;
# white space at the edges of texts.
_PROBES = (
    Conversation((Message("user", "One?"),)),
    Conversation((Message("system", "Be brief."), Message("user", "One?"))),
    Conversation((Message("user", "One?"), Message("assistant", "1"), Message("user", "Two?"))),
    Conversation(
        (
            Message("system", " S\n"),
            Message("user", " One?\n"),
            Message("assistant", "<think>a</think>\n\nb</think> c \n"),
            Message("user", "\tTwo? "),
            Message("assistant", "\n2"),
            Message("user", "Three?"),
        )
    ),
)


def _probe(source: str, tokenizer: Tokenizer) -> list[Outcome]:
    messages = [[{"role": m.role, "content": m.text} for m in probe.messages] for probe in _PROBES]
    return render(source, [variables(tokenizer, m, think) for m in messages for think in MODES])


def _expected(family: Family) -> list[Outcome]:
    """What a template of this family writes, if a way of thinking that it does not have changes nothing."""
    modes = [family.default_think if think not in family.prompts else think for think in MODES]
    return ["".join(text for text, _ in family.parts(probe, mode)) for probe in _PROBES for mode in modes]
