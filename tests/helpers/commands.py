"""Commands in this process, as a person would type them."""

from __future__ import annotations

import sys

from robvit.cli import main


def exit_code(*words: object) -> int:
    """The exit code of `robvit WORDS`."""
    sys.argv = ["robvit", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
