"""The commands below `localmoe chats` and their options."""

from enum import StrEnum
from typing import Annotated

import typer

from localmoe.cli.options import Json, Quiet, examples

app = typer.Typer(
    name="chats",
    help="List, read, search, export and delete kept chats.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(help="Its id, or the beginning of it.", metavar="ID")]
Ids = Annotated[list[str], typer.Argument(help="Their ids, or the beginnings.", metavar="ID")]
Number = Annotated[int | None, typer.Option("-n", "--number", help="At most so many.", metavar="N", min=1)]


class Format(StrEnum):
    """What an export is written in."""

    MARKDOWN = "markdown"
    JSON = "json"


@app.command(
    "list",
    epilog=examples(
        "localmoe chats list -n 5",
        "localmoe chats list --json | jq .chats[0].id",
    ),
)
def list_door(
    number: Number = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those deleted in the last 30 days.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List chats, the one used last first."""
    from localmoe.cli.chats.reading import list_chats

    list_chats(number, deleted=deleted, as_json=json, quiet=quiet)


@app.command(
    "show",
    epilog=examples("localmoe chats show k3f9 | less"),
)
def show_door(chat: Id, json: Json = False, quiet: Quiet = False) -> None:
    """Print one chat."""
    from localmoe.cli.chats.reading import show

    show(chat, as_json=json)


@app.command(
    "search",
    epilog=examples(
        "localmoe chats search router",
        'localmoe chats search "page table" --json',
    ),
)
def search_door(
    words: Annotated[list[str], typer.Argument(help="All of them must occur.", metavar="WORD")],
    number: Number = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find words in titles, questions and answers."""
    from localmoe.cli.chats.reading import find

    find(words, number, as_json=json, quiet=quiet)


@app.command(
    "export",
    epilog=examples(
        "localmoe chats export k3f9 > chat.md",
        "localmoe chats export --all --json > all.json",
    ),
)
def export_door(
    chats: Annotated[list[str] | None, typer.Argument(help="Their ids, or the beginnings.", metavar="ID")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All chats.")] = False,
    format: Annotated[Format, typer.Option(help="Markdown has the branch in use, JSON everything.")] = Format.MARKDOWN,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    quiet: Quiet = False,
) -> None:
    """Print chats as Markdown or JSON, which `import` takes back."""
    from localmoe.cli.chats.exchange import export

    export(tuple(chats or ()), everything=everything, as_json=json or format is Format.JSON)


@app.command(
    "import",
    epilog=examples(
        "localmoe chats import chat.md all.json",
        "ssh box localmoe chats export --all | localmoe chats import -",
    ),
)
def import_door(
    files: Annotated[list[str], typer.Argument(help="What export wrote; - is stdin.", metavar="FILE")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take chats back; prints the ids they have here."""
    from localmoe.cli.chats.exchange import take

    take(files, as_json=json, quiet=quiet)


@app.command(
    "rename",
    epilog=examples('localmoe chats rename k3f9 "The router"'),
)
def rename_door(
    chat: Id, title: Annotated[str, typer.Argument(metavar="TITLE")], json: Json = False, quiet: Quiet = False
) -> None:
    """Give a chat another title."""
    from localmoe.cli.chats.changing import rename

    rename(chat, title, as_json=json, quiet=quiet)


@app.command(
    "rm",
    epilog=examples(
        "localmoe chats rm k3f9",
        "localmoe chats rm --forever k3f9 ab2c",
    ),
)
def rm_door(
    chats: Ids,
    forever: Annotated[bool, typer.Option("--forever", help="At once and for good; also deleted ones.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Delete chats; for 30 days `restore` brings them back."""
    from localmoe.cli.chats.changing import remove

    remove(chats, forever=forever, as_json=json, quiet=quiet)


@app.command(
    "restore",
    epilog=examples(
        "localmoe chats list --deleted",
        "localmoe chats restore k3f9",
    ),
)
def restore_door(chats: Ids, json: Json = False, quiet: Quiet = False) -> None:
    """Bring deleted chats back."""
    from localmoe.cli.chats.changing import restore

    restore(chats, as_json=json, quiet=quiet)
