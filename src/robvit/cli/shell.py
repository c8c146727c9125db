"""Commands as they are typed: this one, and the next."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import typer


def typed() -> str:
    """This command, quoted so that it can be pasted into a shell."""
    return shlex.join(["robvit", *sys.argv[1:]])


def command_line(*words: object, **options: Any) -> str:
    """A command of robvit's, quoted; options that are None or empty are left out."""
    given = options_of(**options)
    return " ".join(filter(None, (shlex.join(["robvit", *map(str, words)]), given)))


def options_of(**options: Any) -> str:
    """Options as they are typed, quoted; those that are None or empty are left out."""
    given: list[str] = []
    for name, value in options.items():
        if value not in (None, "", False):
            given += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(given)


def tell_next(*words: object, **options: Any) -> None:
    """Print a command that may be typed next."""
    typer.echo(f"next: {command_line(*words, **options)}")


def tell_device(net: Any = None) -> None:
    """Say on standard error where the work is done: where a network is, or where long work is brought."""
    from robvit.processes import device_name, processes

    if processes().is_main_process:
        where = None if net is None else next(net.parameters()).device
        typer.echo(f"device: {device_name(where)}", err=True)
