"""Chat templates in Jinja, written for the tests: DeepSeek's formats, and others in the manner of other makers."""

_DEEPSEEK = (
    "{% set ns = namespace(system='') %}"
    "{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.system = ns.system + m['content'] %}{%- endif %}"
    "{%- endfor %}{{ bos_token }}{{ ns.system }}"
    "{%- for m in messages %}"
    "{%- if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{%- endif %}"
    "{%- if m['role'] == 'assistant' %}{%- set c = m['content'] %}"
    "{%- if CUT and '</think>' in c %}{%- set c = SPLIT %}{%- endif %}"
    "{{ EARLIER + c + '<｜end▁of▁sentence｜>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}END{%- endif %}"
)


def _deepseek(earlier: str, split: str | None, end: str) -> str:
    source = _DEEPSEEK.replace("CUT", "true" if split else "false").replace("SPLIT", split or "c")
    return source.replace("EARLIER", repr(earlier)).replace("END", end)


V3 = _deepseek("<｜Assistant｜>", None, "")
R1 = _deepseek("<｜Assistant｜>", "c.split('</think>')[-1]", "{{ '<think>\\n' }}")
V31 = _deepseek(
    "<｜Assistant｜></think>", "c.split('</think>', 1)[1]", "{%- if thinking %}<think>{%- else %}</think>{%- endif %}"
)

# As V2-Lite: no special tokens between the turns, so that words of the template and of people meet.
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

# As ChatML's kin: stripped texts, reasoning kept apart, a switch, line breaks and comments between the blocks.
CHATML = """\
{# a comment #}
{%- for m in messages %}
    {%- if m.role == "assistant" and m.reasoning_content and loop.revindex <= 2 %}
{{ '<|im_start|>assistant\\n<think>\\n' + m.reasoning_content | trim + '\\n</think>\\n\\n' }}
{{- m.content | trim + '<|im_end|>' }}
    {%- else %}
{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' }}
    {%- endif %}
{% endfor %}
{%- if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
{{ '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{% endif %}
"""

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported.') }}{% endif %}"
    "{{ m.role + ': ' + m.content }}{% endfor %}"
)
IGNORES_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.role + ': ' + m.content }}{% endfor %}"
