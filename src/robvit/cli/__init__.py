"""The command line: the verbs of the public API, and nothing computed only here.

Every verb is a function in a module of this package. Modules import torch inside their functions,
so that `robvit --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from robvit.cli import data, weights
from robvit.errors import RobvitError

app = typer.Typer(
    name="robvit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Harden Vision Transformers, attack them hard, and tell the truth about the result.",
)
app.add_typer(data.app, name="data")
app.add_typer(weights.app, name="weights")


def main() -> None:
    """Run a command; what robvit refuses is one line on standard error and exit code 2."""
    try:
        app()
    except RobvitError as error:
        print(f"robvit: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("robvit: interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
