"""Options and arguments that several commands take, each written once."""

from typing import Annotated

import typer


def complete_model(beginning: str) -> list[str]:
    """For the shell: names of the catalogue, and of what else the cache has."""
    from localmoe.errors import LocalmoeError

    try:
        from localmoe.hub.catalog import load_catalog
        from localmoe.hub.hf_cache import cached_repositories

        names = [*load_catalog(), *cached_repositories()]
    except LocalmoeError:  # a wrong models.toml is not for a completion to explain
        return []
    return [name for name in names if name.startswith(beginning)]


Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        help="Catalogue name or folder.",
        metavar="NAME_OR_FOLDER",
        autocompletion=complete_model,
    ),
]
Context = Annotated[int | None, typer.Option(help="Most tokens in a conversation.", metavar="N")]
Threads = Annotated[int | None, typer.Option(help="Worker threads; default: one per core.", metavar="N")]
Plan = Annotated[
    str | None,
    typer.Option(
        "--plan",
        help="What computes where: auto, cpu, slp, dslp or disk; slp and dslp take GPUs, disk leaves experts there.",
        metavar="PLAN",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing on stderr but errors.")]
Stream = Annotated[bool, typer.Option("--stream", help="With --json: events as JSON lines.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="One JSON object; with --stream events, then it.")]


def examples(*lines: str, after: str = "") -> str:
    """The end of a command's help: a line for each example, none of them wrapped."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    shown = "\b\n" + "\n".join([head, *(f"  {line}" for line in lines)])
    return f"{shown}\n\n{after}" if after else shown
