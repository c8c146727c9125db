"""Reads README and docs: every command and every block of code, in the order in which a reader meets them."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer._click import Context

from robvit.attacks import ATTACKS
from robvit.cli import app
from robvit.settings import parse_settings
from robvit.studies import STUDIES
from robvit.training.recipe import changes_of, load_recipe

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
LANGUAGES = ("python", "yaml", "toml", "sh", "text")  # sh is not run here; text is a drawing or an output
STARTS = ("robvit", "python", "make", "pip", "curl")
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?$')
INLINE = re.compile(rf"`((?:{'|'.join(STARTS)}|accelerate launch -m robvit)\s[^`]+)`")


@dataclass(frozen=True)
class Block:
    """A command (kind "command"), or a fenced block by its language; `title` is the file it is to be."""

    kind: str
    text: str
    line: int
    title: str = ""


def blocks(path: Path) -> list[Block]:
    """All of a page, in order; lines that end in a backslash are one command."""
    found, lines, number = [], path.read_text("utf-8").splitlines(), 0
    while number < len(lines):
        start, line = number, lines[number]
        if fence := FENCE.match(line):
            number = lines.index("```", number + 1)
            found.append(
                Block(fence[1], "\n".join(lines[start + 1 : number]) + "\n", start + 1, fence[2] or "")
            )
        elif line.startswith("    ") and line.strip():
            text = line.strip()
            while text.endswith("\\"):
                number += 1
                text = text[:-1] + lines[number].strip()
            found.append(Block("command", text, start + 1))
        number += 1
    return found


def inline(path: Path) -> list[str]:
    """Commands in the running text; often only their first words."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(text.split()) for text in INLINE.findall(prose)]


def words(command: str) -> list[str]:
    """The words of a command, its comment left out."""
    return shlex.split(command, comments=True)


@functools.cache  # made of all signatures
def root_command() -> Any:
    return typer.main.get_command(app)


def found_command(arguments: list[str]) -> tuple[list[str], Any, list[str]]:
    """The names that lead to a command of robvit, the command, and what is left for it."""
    command, names = root_command(), []
    while hasattr(command, "commands") and arguments:
        context = Context(command, info_name="robvit")
        name, command, arguments = command.resolve_command(context, list(arguments))
        names.append(name)
    return names, command, arguments


def check_command(text: str, whole: bool) -> None:
    """Raise unless robvit has the command, its options and its settings; `whole` ones lack nothing."""
    names, command, arguments = found_command([word for word in words(text)[1:] if word != "..."])
    if hasattr(command, "commands"):
        assert not whole, "a command is missing"
        return
    if whole:
        given = command.make_context(names[-1], list(arguments)).params
    else:
        given = command.make_parser(Context(command, info_name=names[-1])).parse_args(list(arguments))[0]
    settings = given.get("setting") or []
    if names == ["reproduce"] and given.get("name") and not given.get("check"):
        parse_settings(settings, STUDIES.info(given["name"]).defaults, given["name"])
    if names == ["attack"] and given.get("attack") in ATTACKS:
        parse_settings(settings, ATTACKS.info(given["attack"]).defaults, given["attack"])
    if names == ["train", "recipe"] and not given["name"].endswith(".yaml"):
        load_recipe(given["name"], **changes_of(settings))
