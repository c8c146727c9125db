"""A process that parses arguments and never gets as far as torch: run by `fuzz_targets`.

It first says some good command lines as JSON, then answers each numbered line of arguments with how it ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

HEAVY = ("torch", "torchvision", "timm", "accelerate", "gradio", "huggingface_hub", "datasets", "uvicorn")
# What needs no torch and does more than look: it fetches, or writes where it is told.
LEFT_OUT = ("weights", "app", "demo")


class ReachedTorch(BaseException):
    """The arguments were taken; what follows is work."""


class NoTorch(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HEAVY:
            raise ReachedTorch


def examples() -> list[list[str]]:
    """For every command its options with plausible values."""
    from robvit.cli import app

    values = ["robvit-mini", "sample", "pgd", "8/255", "linf", "3", "x.json", "a=1", "linf-8-standard@1"]
    found: list[list[str]] = [["--version"], ["--help"]]

    def walk(command: Any, words: list[str]) -> None:
        if words and words[0] in LEFT_OUT:
            return
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, [*words, name])
        if not getattr(command, "commands", {}):
            options = [p for p in command.params if p.param_type_name == "option"]
            needed = ["robvit-mini" for p in command.params if p.param_type_name == "argument"]
            for i, option in enumerate(options):
                given = [option.opts[0]] + ([] if option.is_flag else [values[i % len(values)]])
                found.append([*words, *needed, *given])
            found.append([*words, *needed])

    walk(typer.main.get_command(app), [])
    return found


def ended(arguments: list[str]) -> dict[str, str]:
    """How a command line ends: read, refused, or as it must not."""
    from robvit.cli import app
    from robvit.errors import RobvitError

    if any(word in LEFT_OUT for word in arguments[:2]) or any(word.startswith("/") for word in arguments):
        return {}
    try:
        outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    except ReachedTorch:
        return {}
    except RobvitError as error:
        return {"refused": str(error).encode("utf-8", "backslashreplace").decode()}
    except BaseException:
        return {"found": traceback.format_exc().encode("utf-8", "backslashreplace").decode()}
    return {} if outcome.exit_code == 0 else {"refused": f"exit {outcome.exit_code}"}


def main() -> None:
    sys.meta_path.insert(0, NoTorch())
    out = os.fdopen(os.dup(1), "w")
    print(json.dumps(examples()), file=out, flush=True)
    here = Path.cwd()
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            number, arguments = json.loads(line)
            answer = ended(arguments)
        os.chdir(here)
        print(json.dumps([number, answer]), file=out, flush=True)


if __name__ == "__main__":
    main()
