"""Good files of every kind that robvit reads, and how each is read: what fuzzing starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from helpers.lora import changed_lora
from helpers.report_samples import rich_record
from robvit.backbones.heads import LinearHead, load_head
from robvit.backbones.weights import read_local
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool, load_tokens
from robvit.defenses.tokens import RobustTokens, import_published
from robvit.defenses.tora.io import load_adapters, save_adapters
from robvit.defenses.tora.modules import Adapters, AdapterShape
from robvit.evaluation.compare import open_record
from robvit.evaluation.protocol import find
from robvit.loading import load
from robvit.training.recipe import load_recipe


def _tokens(path: Path) -> None:
    RobustTokens(torch.randn(1, 2, 8), "ab", "key", {"steps": 3}).save(path)


def _pool(path: Path) -> None:
    TokenPool((RobustTokens(torch.randn(1, 2, 8)), RobustTokens(torch.randn(1, 2, 8)))).save(path)


def _published(path: Path) -> None:
    torch.save({"rtokens": torch.randn(1, 2, 8)}, path)


def _checkpoint(path: Path) -> None:
    torch.save({"state_dict": {"a": torch.randn(2, 2), "b": torch.randn(3)}, "epoch": 3}, path)


def _lora(path: Path) -> None:
    changed_lora(load("robvit-mini"), 1, 1).save(path)


# Kind: the file's name, what writes a good one, and what reads it.
FILES: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {
    "tokens": ("x.safetensors", _tokens, load_tokens),
    "pool": ("x.safetensors", _pool, load_tokens),
    "published tokens": ("x.pt", _published, import_published),
    "head": ("x.safetensors", LinearHead(8, 3, "ab").save, load_head),
    "adapters": ("x.safetensors", lambda p: save_adapters(Adapters(AdapterShape(8, 2, 3)), p), load_adapters),
    "lora": ("x.safetensors", _lora, LoRA.load),
    "checkpoint": ("x.pt", _checkpoint, read_local),
    "safe checkpoint": ("x.safetensors", _tokens, read_local),
    "record": ("x.json", rich_record(count=4).save, open_record),
}
# Kind: the package and file of a good one, and what reads it.
YAMLS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "protocol": ("robvit.evaluation", "protocols/rob-tokens@1.yaml", find),
    "recipe": ("robvit.training", "recipes/xcit-light.yaml", load_recipe),
}
