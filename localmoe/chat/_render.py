"""A program of its own: renders a stranger's Jinja under hard limits. Run by sandbox.py, never imported.

Reads one JSON request from stdin, writes one JSON reply to stdout. Knows nothing of localmoe.
"""

import json
import resource
import sys
from datetime import datetime
from typing import Any

CPU_S = 3
MEMORY_BYTES = 512 << 20
MAX_CHARS = 4 << 20


def main() -> None:
    """Renders every job of the request; a job's reply is its text or its error."""
    request = json.load(sys.stdin)
    sys.path += request["import_from"]
    _limit()
    json.dump(_replies(request), sys.stdout)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # nobody may raise a limit
        resource.setrlimit(kind, (most, most))


def _replies(request: dict[str, Any]) -> list[dict[str, str]]:
    try:
        template = _compile(request["template"])
    except Exception as error:  # noqa: BLE001  whatever it is, it is reported
        return [{"error": "template", "message": _line(error)} for _ in request["jobs"]]
    return [_reply(template, job) for job in request["jobs"]]


def _reply(template: Any, variables: dict[str, Any]) -> dict[str, str]:
    from jinja2.exceptions import SecurityError

    try:
        return {"text": _render(template, variables)}
    except (MemoryError, RecursionError, _TooLongError):
        return {"error": "limits", "message": ""}
    except SecurityError as error:
        return {"error": "forbidden", "message": _line(error)}
    except _RaisedError as error:
        return {"error": "raised", "message": _line(error)}
    except Exception as error:  # noqa: BLE001  whatever it is, it is reported
        return {"error": "template", "message": _line(error)}


def _render(template: Any, variables: dict[str, Any]) -> str:
    pieces, length = [], 0
    for piece in template.generate(**variables):
        length += len(piece)
        if length > MAX_CHARS:
            raise _TooLongError
        pieces.append(piece)
    return "".join(pieces)


def _compile(source: str) -> Any:
    """The environment of transformers: trimmed blocks, loop controls, its two functions and its JSON filter."""
    import jinja2.ext
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["namespace"] = _namespace
    return environment.from_string(source)


def _generation_tag() -> Any:
    """Template authors mark answers with {% generation %}, which means something to training only."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation


def _namespace(*args: Any, **kwargs: Any) -> Any:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    made = Namespace(*args, **kwargs)
    if any(str(name).startswith("_") for name in dict(*args, **kwargs)):
        raise SecurityError("a namespace cannot hold names that begin with an underscore")
    return made


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _TooLongError(Exception):
    """More text than any prompt has."""


class _RaisedError(Exception):
    """The template itself refused the conversation."""


def _raise(message: object) -> None:
    raise _RaisedError(message)


def _line(error: Exception) -> str:
    words = "".join(c if c.isprintable() else " " for c in str(error)).split()
    return " ".join(words)[:200] or type(error).__name__


if __name__ == "__main__":
    main()
