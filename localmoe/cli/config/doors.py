"""The commands below `localmoe config` and their options."""

from typing import Annotated

import typer

from localmoe.cli.options import Json, Model, Quiet, examples

app = typer.Typer(
    name="config",
    help="Show and change settings.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def complete_key(beginning: str) -> list[str]:
    """For the shell: names of settings."""
    from localmoe.settings import RULES

    return [name for name in RULES if name.startswith(beginning)]


Key = Annotated[
    str, typer.Argument(help="A setting, as `config show` names it.", metavar="KEY", autocompletion=complete_key)
]


@app.command(
    "show",
    epilog=examples(
        "localmoe config show",
        "localmoe config show -m deepseek-v3.1",
        "localmoe config show --json | jq '.settings[] | select(.line)'",
    ),
)
def show_door(model: Model = None, json: Json = False, quiet: Quiet = False) -> None:
    """Print each setting's value, and where it comes from."""
    from localmoe.cli.config.show import show

    show({"model": model}, as_json=json)


@app.command(
    "path",
    epilog=examples('"$EDITOR" "$(localmoe config path)"'),
)
def path_door(json: Json = False, quiet: Quiet = False) -> None:
    """Print where config.toml is, or would be."""
    from localmoe.cli.config.change import path

    path(as_json=json)


@app.command(
    "set",
    epilog=examples(
        "localmoe config set model deepseek-v3.1",
        "localmoe config set temperature 0.3",
    ),
)
def set_door(
    key: Key,
    value: Annotated[str, typer.Argument(help="Its new value.", metavar="VALUE")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one value into config.toml; all else in it stays."""
    from localmoe.cli.config.change import set_value

    set_value(key, value, as_json=json, quiet=quiet)


@app.command(
    "unset",
    epilog=examples("localmoe config unset temperature"),
)
def unset_door(key: Key, json: Json = False, quiet: Quiet = False) -> None:
    """Take one value out of config.toml."""
    from localmoe.cli.config.change import unset

    unset(key, as_json=json, quiet=quiet)
