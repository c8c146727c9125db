"""The figures of the thesis on adversarially training XCiT: facts to set ours beside, in per cent.

The later paper of the same work (2209.07399) published other networks; its XCiT-L12 with two inner steps
reaches 73.76 / 47.60, and its fine-tuned ones 87.59 / 61.74 (Caltech-101) and 82.86 / 47.91 (Flowers).
"""

from __future__ import annotations

from typing import NamedTuple

PAPER = "Debenedetti, Adversarially robust vision transformers (thesis, 2022); 2209.07399"


class Ablated(NamedTuple):
    """A row of Tables 1 to 4: clean accuracy after standard training, clean and APGD-CE after adversarial."""

    standard: float | None
    clean: float | None
    robust: float | None


class Policy(NamedTuple):
    """Which of DeiT's augmentations a row of Table 3 has, besides flips, crops and colour jitter."""

    mixup: bool
    cutmix: bool
    randaugment: bool
    erase: bool


class Network(NamedTuple):
    """A row of Table 6; the thesis prints a width of 324 for XCiT-S12, which is 384."""

    width: int | None
    millions: float
    gflops: float
    clean: float
    autoattack: float


TABLE1 = {
    "DeiT-S": Ablated(67.38, 62.52, 33.32),
    "CaiT-S12": Ablated(80.28, 70.20, 35.84),
    "XCiT-S12": Ablated(90.44, 85.06, 54.80),
}
# Epochs over which eps rises.
TABLE2 = {
    0: Ablated(None, 48.46, 30.48),
    5: Ablated(None, 52.04, 32.86),
    10: Ablated(None, 54.62, 33.84),
    20: Ablated(None, 56.10, 34.88),
    30: Ablated(None, 56.12, 34.54),
}
# The seven best of the sixteen policies, and DeiT's own, which has them all.
TABLE3 = {
    Policy(False, False, False, True): Ablated(77.22, 67.28, 39.22),
    Policy(False, False, False, False): Ablated(76.60, 66.78, 39.22),
    Policy(True, False, False, False): Ablated(76.34, 61.04, 38.56),
    Policy(True, False, False, True): Ablated(76.02, 60.46, 38.26),
    Policy(True, True, False, False): Ablated(76.48, 62.04, 38.18),
    Policy(False, False, True, False): Ablated(78.62, 65.34, 37.64),
    Policy(False, False, True, True): Ablated(78.08, 64.76, 37.62),
    Policy(True, True, True, True): Ablated(75.32, 56.64, 35.38),
}
# Weight decay.
TABLE4 = {
    0.0: Ablated(76.32, 66.44, 39.02),
    0.001: Ablated(76.32, 66.40, 39.04),
    0.01: Ablated(76.26, 66.28, 38.66),
    0.05: Ablated(76.36, 67.16, 39.30),
    0.1: Ablated(76.58, 67.28, 39.92),
    0.5: Ablated(76.72, 68.78, 42.02),
    1.0: Ablated(76.12, 67.68, 40.88),
}
# Clean and AutoAttack accuracy from here on.
TABLE5 = {
    "DeiT-S": (66.30, 32.70),
    "+ cross-covariance attention": (71.68, 28.70),
    "+ eps warm-up": (71.98, 29.36),
    "+ tuned augmentation": (71.70, 38.78),
    "+ tuned weight decay": (72.34, 41.78),
}
TABLE6 = {
    "GELU ResNet-50": Network(None, 25, 4.11, 67.38, 35.51),
    "WideResNet-50-2": Network(None, 68, 11.47, 68.46, 38.14),
    "XCiT-S12": Network(384, 26, 4.82, 72.34, 41.78),
    "XCiT-M12": Network(512, 46, 8.54, 74.04, 45.24),
    "XCiT-L12": Network(768, 104, 18.97, 74.60, 43.78),
}
# Fine-tuning and network: Caltech-101, then Oxford Flowers; standard ones were not attacked.
TABLE7: dict[tuple[str, str], tuple[tuple[float, float | None], tuple[float, float | None]]] = {
    ("standard", "XCiT-S12"): ((90.42, None), (89.08, None)),
    ("standard", "ResNet-50"): ((86.97, None), (82.30, None)),
    ("adversarial", "XCiT-S12"): ((89.66, 49.66), (85.01, 29.37)),
    ("adversarial", "ResNet-50"): ((83.22, 33.90), (70.61, 21.52)),
}
TABLE8 = {
    "with robust pre-training": (90.06, 56.14),
    "from the start, with synthetic images": (80.01, 47.88),
    "from the start": (82.84, 39.49),
}
# Top-5 accuracy of standard classifiers on perturbations: ConvNeXt-XL, BeiT-L, Swin-L.
TABLE9 = {
    ("robust", "XCiT-S12"): (43.86, 49.52, 40.24),
    ("robust", "ResNet-50"): (38.40, 45.02, 36.70),
    ("standard", "XCiT-S12"): (0.84, 0.78, 0.84),
    ("standard", "ResNet-50"): (0.82, 0.74, 0.80),
}
