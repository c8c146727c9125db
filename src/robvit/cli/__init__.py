"""The command line: the verbs of the public API, and nothing computed only here.

Every verb is a function in a module of this package. Modules import torch inside their functions,
so that `robvit --help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from robvit import __version__
from robvit.cli import app as playground
from robvit.cli import (
    attack,
    bake,
    card,
    certify,
    challenge,
    check,
    compare,
    curve,
    data,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    heads,
    models,
    push,
    report,
    reproduce,
    review,
    robustify,
    serve,
    table,
    tokens,
    train,
    verify,
    weights,
)
from robvit.cli.commands import Command, Group
from robvit.errors import RobvitError
from robvit.texts import printable

app = typer.Typer(
    name="robvit",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Make Vision Transformers robust, attack them, and say what may be claimed from the result.",
)
for _command in (
    demo.demo,
    models.models,
    robustify.robustify,
    attack.attack,
    attack.attacks,
    check.check,
    evaluate.evaluate,
    certify.certify,
    curve.curve,
    challenge.challenge,
    compare.compare,
    verify.verify,
    verify.sign,
    doctor.doctor,
    explain.explain,
    review.review,
    report.report,
    card.card,
    table.table,
    reproduce.reproduce,
    export.export,
    bake.bake,
    push.push,
    serve.serve,
    playground.app,
):
    app.command(cls=Command)(_command)
app.add_typer(weights.app, name="weights")
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")
app.add_typer(heads.app, name="heads")
app.add_typer(tokens.app, name="tokens")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _warning(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as people read it: no place in the code, no line of it."""
    return f"warning: {printable(' '.join(str(message).split()))}\n"


INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def main() -> None:
    """Run a command; what robvit refuses is one line on standard error and exit code 2."""
    warnings.formatwarning = _warning
    try:
        app()
    except RobvitError as error:
        print(printable(f"robvit: {error}"), file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # the disk, a folder that may not be written: no fault of robvit's
        print(printable(f"robvit: {error}"), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:  # typer ends so after Ctrl-C, without a word
        if end.code == INTERRUPTED:
            print("robvit: interrupted; run the same command again to resume", file=sys.stderr)
        raise
