"""The commands about this machine, and their options."""

from pathlib import Path
from typing import Annotated

import typer

from localmoe.cli.options import Context, Json, JsonEvents, Model, Quiet, Stream, Threads, complete_model, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "doctor",
    epilog=examples(
        "localmoe doctor --measure",
        "localmoe doctor -m deepseek-v3.1 --context 65536",
        "localmoe doctor --json | jq .checks",
        after="It ends with 3 where localmoe cannot run.",
    ),
)
def doctor_door(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Plan for it: a catalogue name, a folder or org/repo.",
            metavar="MODEL",
            autocompletion=complete_model,
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine first, about 10 s.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="With -m: how the predictions come about.")] = False,
    plan: Annotated[str | None, typer.Option(help="auto, cpu, slp, dslp or disk.", metavar="KIND")] = None,
    context: Context = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what this machine is, what to fix, and what it could run."""
    from localmoe.cli.doctor.command import Wanted, doctor

    wanted = Wanted(model=model, measure=measure, explain=explain, json=json, quiet=quiet)
    raise typer.Exit(doctor({"plan": plan, "context": context}, wanted))


@app.command(
    "bench",
    epilog=examples(
        "localmoe bench",
        "localmoe bench --suite prefill,decode -m guide",
        "localmoe bench --suite load --json --csv mine.csv",
    ),
)
def bench_door(
    suite: Annotated[
        str,
        typer.Option(
            help="Any of kernels, load, prefill, decode, slp, mixed, plan, startup, tui, with commas.", metavar="SUITES"
        ),
    ] = "kernels,prefill,decode,startup",
    model: Model = None,
    threads: Threads = None,
    json: JsonEvents = False,
    stream: Stream = False,
    csv: Annotated[Path | None, typer.Option(help="Add the rows to this file.", metavar="FILE")] = None,
    device: Annotated[
        str, typer.Option(help="host, or cuda: kernels, decode and slp with a GPU.", metavar="DEVICE")
    ] = "host",
    quiet: Quiet = False,
) -> None:
    """Measure this machine, beside a reference in the same run."""
    from localmoe.cli.bench import Wanted, bench

    wanted = Wanted(device=device, csv=csv, json=json, stream=stream, quiet=quiet)
    bench(suite, {"model": model, "threads": threads}, wanted)
