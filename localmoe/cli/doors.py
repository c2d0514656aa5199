"""The commands and their options. Rooms are imported when a door opens, so that `--help` is quick."""

from typing import Annotated

import typer

from localmoe.cli.chats.doors import app as chats
from localmoe.cli.config.doors import app as config
from localmoe.cli.machine_doors import app as machine
from localmoe.cli.model_doors import app as models
from localmoe.cli.options import Context, Model, Plan, Quiet, Threads, examples

app = typer.Typer(
    name="localmoe",
    epilog="Without a command, localmoe opens the chat.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Think = Annotated[bool | None, typer.Option("--think/--no-think", help="Let the model think before it answers.")]
Share = Annotated[
    bool | None,
    typer.Option("--share/--no-share", help="Use the engine of a running chat; a chat lends its own."),
]
Last = Annotated[bool, typer.Option("-c", "--continue", help="Go on with the chat used last.")]
ChatId = Annotated[str | None, typer.Option("--chat", help="Go on with this chat.", metavar="ID")]
NoSave = Annotated[bool, typer.Option("--no-save", help="Keep nothing of it.")]


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


@app.command(
    "chat",
    epilog=examples(
        "localmoe chat -m deepseek-v3.1",
        "localmoe chat -c",
        "localmoe chat -m ~/models/mine --no-save",
    ),
)
def chat_door(
    model: Model = None,
    last: Last = False,
    chat: ChatId = None,
    no_save: NoSave = False,
    context: Context = None,
    threads: Threads = None,
    plan: Plan = None,
    think: Think = None,
    share: Share = None,
) -> None:
    """Open the chat in this terminal."""
    from localmoe.cli.chat import chat as open_chat
    from localmoe.cli.kept import Keeping

    flags = {"model": model, "context": context, "threads": threads, "plan": plan, "think": think, "share": share}
    open_chat(flags, Keeping(save=not no_save, last=last, chat=chat))


@app.command(
    "ask",
    epilog=examples(
        'localmoe ask "What can you do?"',
        'git diff | localmoe ask "Review this"',
        'localmoe ask -c "And in one sentence?"',
        "localmoe ask --json --temperature 0 hello | jq -r .text",
    ),
)
def ask_door(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="The question; text piped to stdin is added to it.")
    ] = None,
    model: Model = None,
    last: Last = False,
    chat: ChatId = None,
    no_save: NoSave = False,
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
    share: Share = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Thoughts and statistics on stderr.")] = False,
    quiet: Quiet = False,
) -> None:
    """Answer one prompt; stdout gets the answer, stderr the rest."""
    from localmoe.cli.ask import Wanted, ask
    from localmoe.cli.kept import Keeping

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
        "share": share,
    }
    wanted = Wanted(json=json, ids=ids, stream=stream, verbose=verbose, quiet=quiet)
    keeping = Keeping(save=not no_save, last=last, chat=chat)
    raise typer.Exit(ask(tuple(prompt or ()), system or "", flags, wanted, keeping))


for part in (models, chats, machine, config):
    app.add_typer(part)


def open_only(words: list[str], app: typer.Typer) -> None:
    """Spares typer the parameters of commands that no word names: at most a line of their help is shown."""
    for command in app.registered_commands:
        if command.name not in words and command.callback:
            command.help, command.callback = command.callback.__doc__, lambda: None
    for group in app.registered_groups:
        if group.typer_instance:
            open_only(words, group.typer_instance)
