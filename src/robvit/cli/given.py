"""Options that were typed but would do nothing: they are refused, not ignored."""

from __future__ import annotations

import typer


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, whatever its value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_given(context: typer.Context, why: str, *names: str) -> None:
    """Refuse the first of these options that was typed; `why` follows its name."""
    for parameter in context.command.params:
        if parameter.name in names and is_given(context, parameter.name):
            raise typer.BadParameter(f"{parameter.opts[0]} {why}")


def refuse_others(context: typer.Context, why: str, *names: str) -> None:
    """Refuse the first option or argument that was typed and is none of these."""
    refuse_given(context, why, *(str(one.name) for one in context.command.params if one.name not in names))
