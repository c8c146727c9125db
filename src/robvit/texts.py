"""Text from elsewhere as it may be shown: in a terminal, in Markdown, in a spreadsheet. No torch."""

from __future__ import annotations

import re
from typing import Any
from unicodedata import category

_MARKUP = re.compile(r"([\\`<\[\]|])")  # code, tags, links and images, cells


def printable(text: str) -> str:
    """Text as a terminal may have it: what steers it or turns the direction of writing is written out."""

    def shown(letter: str) -> str:
        steers = category(letter)[0] == "C" and letter not in "\n\t"
        return letter.encode("unicode_escape", "surrogatepass").decode() if steers else letter

    return text if text.isprintable() else "".join(map(shown, text))


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def markdown_text(text: str) -> str:
    """Text as one line of Markdown that says what it says: no tags, links, images, headings or new lines."""
    return text if isinstance(text, Markdown) else _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))


def markdown_code(text: str) -> str:
    """Text as code inside a line of Markdown, or inside a cell of a table."""
    return "`" + code_line(text).replace("|", "\\|") + "`"


def code_line(text: str) -> str:
    """Text as a line of code, which does not end the code that it stands in."""
    return printable(" ".join(text.split())).replace("`", "'")


def spreadsheet_cell(value: Any) -> Any:
    """A cell of a CSV file; text that a spreadsheet would run as a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
