"""The figures that Robustness Tokens publishes, by our names of its backbones: facts to set ours beside."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    """A figure without and with tokens."""

    regular: float
    hardened: float


class Published(NamedTuple):
    """One backbone's cells of Tables 1 and 2, and of Table 4 where it has one; shares in per cent."""

    accuracy: Pair
    miou: Pair
    cosine: Pair
    attacked_accuracy: Pair
    attacked_miou: Pair
    autoattack: Pair | None = None


def _published(*values: float) -> Published:
    """Cells in the order of the fields, each without and with tokens."""
    pairs = [Pair(*values[i : i + 2]) for i in range(0, len(values), 2)]
    return Published(*pairs)


DINOV2 = {
    "dinov2-small": _published(80.0, 78.5, 41.0, 40.6, 0.09, 0.93, 0.0, 31.9, 2.8, 24.6, 0.5, 29.5),
    "dinov2-base": _published(83.4, 83.1, 45.1, 45.0, 0.05, 0.92, 0.0, 50.0, 3.1, 23.4, 0.9, 46.4),
    "dinov2-large": _published(85.5, 84.2, 45.1, 45.5, 0.06, 0.89, 0.3, 62.9, 4.5, 21.2, 1.8, 60.1),
    "dinov2-giant": _published(85.2, 85.6, 46.6, 47.2, 0.12, 0.89, 0.3, 63.1, 4.7, 23.3),
    "dinov2-small-reg": _published(79.8, 79.2, 40.4, 40.9, 0.01, 0.93, 0.0, 30.5, 2.1, 22.7, 0.3, 24.2),
    "dinov2-base-reg": _published(83.7, 83.1, 45.8, 45.8, 0.03, 0.92, 0.1, 49.7, 3.0, 25.9, 0.8, 43.0),
    "dinov2-large-reg": _published(86.1, 85.9, 46.6, 46.7, 0.03, 0.83, 0.6, 58.7, 4.6, 16.2, 1.9, 59.6),
    "dinov2-giant-reg": _published(86.3, 86.1, 46.8, 47.5, 0.08, 0.9, 0.9, 69.9, 4.2, 25.7),
}

# Table 3: feature cosine under attack. The hardened figures are those of the published training logs.
OTHERS = {
    "deit3-base": Pair(0.16, 0.742),
    "deit3-large": Pair(0.22, 0.776),
    "deit3-huge": Pair(0.23, 0.772),
    "openclip-base": Pair(-0.02, 0.862),
    "openclip-large": Pair(0.13, 0.908),
    "openclip-huge": Pair(0.10, 0.888),
}
