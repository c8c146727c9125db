"""A playground on the bundled models alone, one of them with tokens of no use."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import torch

import robvit
from robvit.app.session import Bench, Limits
from robvit.app.subjects import subjects


def token_file(folder: Path) -> Path:
    """Random tokens for robvit-mini."""
    model = robvit.load("robvit-mini")
    values = torch.randn(1, 4, model.width, generator=torch.Generator().manual_seed(5))
    path = folder / "tokens.safetensors"
    robvit.RobustTokens(values, model.fingerprint()).save(path)
    return path


def bench(folder: Path, **limits: float) -> Bench:
    """The models as on a machine without DINOv2."""
    with patch("robvit.app.subjects.on_disk", return_value=""):
        return Bench(subjects(token_file(folder)), Limits(**limits))
