"""The commands and their options. Rooms are imported when a door opens, so that `--help` is quick."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="localmoe",
    epilog="Without a command, localmoe opens the chat.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str | None, typer.Option("-m", "--model", help="Catalogue name or folder.", metavar="NAME_OR_FOLDER")]
Context = Annotated[int | None, typer.Option(help="Most tokens in a conversation.", metavar="N")]
Threads = Annotated[int | None, typer.Option(help="Worker threads; default: one per core.", metavar="N")]
Plan = Annotated[
    str | None,
    typer.Option(
        "--plan", help="What computes where: auto, cpu, slp, dslp or disk; cpu, disk run today.", metavar="PLAN"
    ),
]
Think = Annotated[bool | None, typer.Option("--think/--no-think", help="Let the model think before it answers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        from localmoe import __version__

        typer.echo(f"localmoe {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def localmoe(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Chat with DeepSeek-class Mixture-of-Experts models on this machine."""
    if context.invoked_subcommand is None:
        from localmoe.cli.chat import chat

        chat({})


@app.command("chat")
def chat_door(
    model: Model = None, context: Context = None, threads: Threads = None, plan: Plan = None, think: Think = None
) -> None:
    """Open the chat in this terminal."""
    from localmoe.cli.chat import chat

    chat({"model": model, "context": context, "threads": threads, "plan": plan, "think": think})


@app.command("ask")
def ask_door(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="The question; text piped to stdin is added to it.")
    ] = None,
    model: Model = None,
    system: Annotated[str | None, typer.Option("-s", "--system", help="System prompt.", metavar="TEXT")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with --stream JSON lines of events, then it.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="With --json: the token ids too.")] = False,
    stream: Annotated[bool | None, typer.Option("--stream/--no-stream", help="Print the answer as it comes.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", metavar="X")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest, up to this probability.", metavar="X")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out what is less likely than X times the likeliest.", metavar="X")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 is off.", metavar="X")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.", metavar="N")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens in the answer.", metavar="N")] = None,
    think: Think = None,
    context: Context = None,
    threads: Threads = None,
    plan: Plan = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Thoughts and statistics on stderr.")] = False,
) -> None:
    """Answer one prompt: the answer goes to stdout, the rest to stderr."""
    from localmoe.cli.ask import Wanted, ask

    flags = {
        "model": model,
        "context": context,
        "threads": threads,
        "plan": plan,
        "think": think,
        "temperature": temperature,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    code = ask(tuple(prompt or ()), system or "", flags, Wanted(json=json, ids=ids, stream=stream, verbose=verbose))
    raise typer.Exit(code)


@app.command("models")
def models_door(json: Json = False) -> None:
    """List known models and what is on this machine."""
    from localmoe.cli.models import models

    models(as_json=json)


@app.command("doctor")
def doctor_door(
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", help="Plan for it: a catalogue name, a folder or org/repo.", metavar="MODEL"),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine first, about 10 s.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="With -m: how the predictions come about.")] = False,
    plan: Annotated[str | None, typer.Option(help="auto, cpu, slp, dslp or disk.", metavar="KIND")] = None,
    context: Context = None,
    json: Json = False,
) -> None:
    """Say what this machine is, what to fix, and what it could run."""
    from localmoe.cli.doctor.command import Wanted, doctor

    wanted = Wanted(model=model, measure=measure, explain=explain, json=json)
    raise typer.Exit(doctor({"plan": plan, "context": context}, wanted))


@app.command("bench")
def bench_door(
    suite: Annotated[
        str,
        typer.Option(help="Any of kernels, load, prefill, decode, slp, plan, startup, with commas.", metavar="SUITES"),
    ] = "kernels,prefill,decode,startup",
    model: Model = None,
    threads: Threads = None,
    json: Json = False,
    csv: Annotated[Path | None, typer.Option(help="Add the rows to this file.", metavar="FILE")] = None,
) -> None:
    """Measure this machine, beside a reference in the same run."""
    from localmoe.cli.bench import bench

    bench(suite, {"model": model, "threads": threads}, as_json=json, csv=csv)
