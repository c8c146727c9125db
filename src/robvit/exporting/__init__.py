"""Models as files for other runtimes."""

from robvit.exporting.formats import SUFFIXES, WARNING, export, loading_lines
from robvit.exporting.parity import BrokenExport, Parity

__all__ = ["SUFFIXES", "WARNING", "BrokenExport", "Parity", "export", "loading_lines"]
