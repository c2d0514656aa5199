"""The doors: what each command is called and what it takes.

Owns words on stdout and stderr, and exit codes. Computes nothing; imports rooms when a door opens.
"""


def main() -> None:
    """The `localmoe` command; never returns."""
    from localmoe.cli.doors import app
    from localmoe.cli.report import leave, run

    leave(run(lambda: app(prog_name="localmoe")))
