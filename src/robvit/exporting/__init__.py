"""Models as files for other runtimes."""

from robvit.exporting.formats import SUFFIXES, WARNING, export, timm_lines
from robvit.exporting.parity import BrokenExport, Parity

__all__ = ["SUFFIXES", "WARNING", "BrokenExport", "Parity", "export", "timm_lines"]
