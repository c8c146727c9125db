"""The figures of the TORA-ViT slides: facts to set ours beside, in per cent; C is an error."""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """One row of the slides' tables."""

    clean: float
    fgsm: float | None = None
    pgd: float | None = None
    a: float | None = None
    r: float | None = None
    c: float | None = None


PAPER = "Li and Xu, Trade-off between Robustness and Accuracy of Vision Transformers (slides)"

TABLE1 = {
    "ViT-B/16 + AugReg": Figures(79.9, None, None, 17.5, 38.2, 52.5),
    "DeiT-B/16": Figures(82.0, 46.4, 21.3, 27.4, 44.9, 48.5),
    "RVT-B*": Figures(82.7, 53.0, 29.9, 28.5, 48.7, 46.8),
    "TORA, 0.1": Figures(84.1, 48.4, 23.3, 46.5, 57.6, 31.7),
    "TORA, 0.5": Figures(83.7, 54.7, 38.0, 39.2, 56.3, 34.4),
    "TORA, 0.9": Figures(80.3, 74.2, 57.5, 22.2, 53.7, 41.6),
}

# Table 2: trade-off and head.
HEADS = {
    (0.1, "accuracy"): Figures(84.15, 47.96, 22.08, 45.75, 56.79, 32.61),
    (0.1, "robustness"): Figures(83.89, 48.54, 24.89, 46.33, 57.38, 31.89),
    (0.1, "joint"): Figures(84.10, 48.44, 23.26, 46.73, 57.64, 31.69),
    (0.3, "accuracy"): Figures(83.79, 50.42, 32.42, 42.05, 56.17, 33.77),
    (0.3, "robustness"): Figures(83.36, 53.73, 35.62, 42.32, 56.49, 33.19),
    (0.3, "joint"): Figures(84.03, 51.85, 33.84, 42.45, 56.72, 32.91),
    (0.5, "accuracy"): Figures(83.38, 53.41, 36.58, 38.93, 55.80, 35.29),
    (0.5, "robustness"): Figures(83.01, 56.19, 39.78, 38.85, 56.12, 34.73),
    (0.5, "joint"): Figures(83.66, 54.75, 37.99, 39.23, 56.27, 34.44),
    (0.7, "accuracy"): Figures(80.80, 63.70, 49.89, 23.64, 54.09, 42.27),
    (0.7, "robustness"): Figures(80.37, 67.37, 52.23, 23.59, 54.04, 42.13),
    (0.7, "joint"): Figures(81.11, 65.75, 50.99, 23.68, 54.29, 41.55),
    (0.9, "accuracy"): Figures(80.66, 70.02, 56.10, 22.69, 53.64, 42.30),
    (0.9, "robustness"): Figures(80.04, 74.24, 58.34, 22.37, 53.39, 42.11),
    (0.9, "joint"): Figures(80.34, 74.19, 57.50, 22.21, 53.67, 41.56),
}

# Table 3: trade-off and tuning.
TUNINGS = {
    (0.1, "heads"): Figures(80.2, 41.1, 15.5, 22.1, 42.0, 56.9),
    (0.1, "single"): Figures(82.5, 40.9, 15.1, 36.9, 48.3, 46.2),
    (0.1, "adapterfusion"): Figures(82.2, 46.2, 22.6, 36.4, 52.2, 35.5),
    (0.1, "tora"): Figures(84.1, 48.4, 23.3, 46.5, 57.6, 31.7),
    (0.9, "heads"): Figures(79.0, 42.0, 16.3, 12.9, 40.2, 62.5),
    (0.9, "single"): Figures(72.3, 53.1, 30.1, 3.1, 21.4, 78.7),
    (0.9, "adapterfusion"): Figures(79.5, 66.2, 55.3, 20.4, 51.7, 42.9),
    (0.9, "tora"): Figures(80.3, 74.2, 57.5, 22.2, 53.7, 41.6),
}
# Operations in billions and parameters in millions.
COSTS = {"heads": (17.6, 88.1), "single": (17.8, 88.3), "adapterfusion": (24.9, 111.2), "tora": (26.0, 111.2)}
