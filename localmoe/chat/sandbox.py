"""Renders a model's own Jinja in a separate process, so that the worst template costs seconds and an error.

jinja2's sandbox keeps a template from Python's insides, but not from looping forever or from filling the memory. A
thread cannot be stopped from outside and a memory limit holds for a whole process; so there is a process: three seconds
of CPU, 512 MiB, no files to write, no children, an empty environment. It costs 0.1 s, and few renderings are needed.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError, NotReadyError, UsageError

Outcome = str | CheckpointError | UsageError

PROGRAM = Path(__file__).with_name("_render.py")
WALL_S = 30.0  # the limit that counts is that of CPU time; a busy machine may need ten times as long for it


def render(template: str, jobs: list[dict[str, Any]]) -> list[Outcome]:
    """For each job its text or its error; CheckpointError at once for a template that exceeds its limits.

    UsageError: the template refused this conversation with raise_exception.
    """
    request = {"template": template, "jobs": jobs, "import_from": _jinja_folders()}
    return [_outcome(reply) for reply in _ask(json.dumps(request))]


def _ask(request: str) -> list[dict[str, str]]:
    import subprocess  # ten milliseconds that most chats never need

    command = [sys.executable, "-I", "-S", str(PROGRAM)]
    keep = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    try:
        done = subprocess.run(command, input=request, capture_output=True, encoding="utf-8", env=keep, timeout=WALL_S)
    except subprocess.TimeoutExpired as error:
        raise _beyond_limits() from error
    except OSError as error:
        raise NotReadyError(f"No process could be started to render the chat template: {error}.") from error
    if done.returncode < 0 or "MemoryError" in done.stderr:
        raise _beyond_limits()
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise NotReadyError(f"The process that renders chat templates failed: {last}.", "install localmoe again.")
    replies: list[dict[str, str]] = json.loads(done.stdout)
    return replies


def _outcome(reply: dict[str, str]) -> Outcome:
    if "text" in reply:
        return reply["text"]
    kind, message = reply["error"], reply["message"].rstrip(".")
    if kind == "limits":
        raise _beyond_limits()
    if kind == "raised":
        return UsageError(
            f"The model's chat template refuses this conversation: {message}.",
            "the words are the template's: change the conversation as they say.",
        )
    if kind == "forbidden":
        return CheckpointError(f"The model's chat template does what a template must not: {message}.", _HINT)
    return CheckpointError(f"The model's chat template cannot be rendered: {message}.", _HINT)


def _beyond_limits() -> CheckpointError:
    return CheckpointError("The model's chat template takes too much time or memory: it was stopped.", _HINT)


_HINT = "the template is broken or hostile: take tokenizer_config.json from the model's own page again."


def _jinja_folders() -> list[str]:
    """Where jinja2 and what it needs lie, found without importing them."""
    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    return sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin})
