"""The commands about models on this disk, and their options."""

from pathlib import Path
from typing import Annotated

import typer

from localmoe.cli.options import Json, JsonEvents, Quiet, Stream, complete_model, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "pull",
    epilog=examples(
        "localmoe pull deepseek-v3.1",
        "localmoe pull org/repo@v1.0 --dry-run",
        "localmoe pull org/repo --json --stream | jq .done_bytes",
    ),
)
def pull_door(
    model: Annotated[
        str,
        typer.Argument(
            help="Catalogue name or org/repo, @revision may follow.", metavar="MODEL", autocompletion=complete_model
        ),
    ],
    parallel: Annotated[int, typer.Option("--parallel", help="Files at a time.", metavar="N")] = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only the plan: files, bytes, room, memory.")] = False,
    xet: Annotated[bool, typer.Option("--xet", help="By Xet where the hub has it; a break costs a file.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Also if this machine cannot run it.")] = False,
    json: JsonEvents = False,
    stream: Stream = False,
    quiet: Quiet = False,
) -> None:
    """Download a model, or go on with a download."""
    from localmoe.cli.pull import Wanted, pull

    wanted = Wanted(at_once=parallel, yes=yes, dry_run=dry_run, json=json, stream=stream, quiet=quiet, xet=xet)
    raise typer.Exit(pull(model, wanted))


@app.command(
    "models",
    epilog=examples(
        "localmoe models",
        "localmoe models --json | jq -r '.models[] | select(.present).name'",
        after="Your own models: models.toml beside config.toml; -m takes their names.",
    ),
)
def models_door(json: Json = False, quiet: Quiet = False) -> None:
    """List known models and what is on this machine."""
    from localmoe.cli.models import models

    models(as_json=json)


@app.command(
    "verify",
    epilog=examples(
        "localmoe verify deepseek-v3.1 --repair",
        "localmoe verify -m ~/models/mine --json",
    ),
)
def verify_door(
    model: Annotated[
        str | None, typer.Argument(help="Name, org/repo or folder.", metavar="MODEL", autocompletion=complete_model)
    ] = None,
    option: Annotated[
        str | None,
        typer.Option("-m", "--model", help="The same.", metavar="MODEL", autocompletion=complete_model),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch damaged files again, only those.")] = False,
    json: JsonEvents = False,
    stream: Stream = False,
    quiet: Quiet = False,
) -> None:
    """Check a model's files: checksums and structure."""
    from localmoe.cli.verify import Wanted, verify

    wanted = Wanted(repair=repair, json=json, stream=stream, quiet=quiet)
    raise typer.Exit(verify(_one_model(model, option), wanted))


@app.command(
    "rm",
    epilog=examples(
        "localmoe rm deepseek-v3",
        "localmoe rm org/repo@v1.0 --yes --json",
    ),
)
def rm_door(
    model: Annotated[
        str,
        typer.Argument(
            help="Name or org/repo; with @revision only that one.", metavar="MODEL", autocompletion=complete_model
        ),
    ],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove a downloaded model, after asking."""
    from localmoe.cli.rm import rm

    raise typer.Exit(rm(model, yes=yes, as_json=json, quiet=quiet))


@app.command(
    "quantize",
    epilog=examples(
        "localmoe quantize moonlight-16b-a3b-instruct",
        "localmoe quantize ~/models/mine /big/mine-fp8 --dry-run",
        "localmoe chat -m /big/mine-fp8",
        after="Stopped or killed, the same command goes on from there.",
    ),
)
def quantize_door(
    model: Annotated[
        str, typer.Argument(help="Name, org/repo or folder, in BF16.", metavar="MODEL", autocompletion=complete_model)
    ],
    out: Annotated[Path | None, typer.Argument(help="The folder to make; default: ./MODEL-fp8.", metavar="OUT")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only the plan: files, bytes, room.")] = False,
    json: JsonEvents = False,
    stream: Stream = False,
    quiet: Quiet = False,
) -> None:
    """Convert a BF16 model to FP8: half the bytes, its error by layer."""
    from localmoe.cli.quantize import Wanted, quantize

    wanted = Wanted(dry_run=dry_run, json=json, stream=stream, quiet=quiet)
    raise typer.Exit(quantize(model, out, wanted))


def _one_model(argument: str | None, option: str | None) -> str:
    from localmoe.errors import UsageError

    if (argument is None) == (option is None):
        raise UsageError("verify takes one model", "localmoe verify deepseek-v3.1, or localmoe verify -m FOLDER")
    return argument or option or ""
