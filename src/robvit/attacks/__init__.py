"""Attacks: pure functions `attack(model, x, y, threat, *, ...) -> adv` on any callable model.

x (B 3 H W) are floats in [0,1] and y (B,) labels; the result has the shape of x and lies in the
threat's ball and in [0,1]. A new attack is one new file in this folder.
"""

from importlib import import_module
from pkgutil import iter_modules

from robvit.attacks.aas import aas, aas_uniform
from robvit.attacks.apgd import apgd, apgd_ce, apgd_dlr
from robvit.attacks.apgd_t import apgd_t
from robvit.attacks.core import ATTACKS, AttackCheck, AttackInfo, attack, frozen, misclassified
from robvit.attacks.counting import Count
from robvit.attacks.cw_l2 import cw_l2
from robvit.attacks.ensemble import autoattack, worst_of
from robvit.attacks.eot import bpda, eot
from robvit.attacks.fab import fab, fab_t
from robvit.attacks.feature import feature
from robvit.attacks.losses import LOSSES
from robvit.attacks.outcome import Outcome
from robvit.attacks.patch import feature_patch, patch
from robvit.attacks.pgd import fgsm, gama, pgd, pgd_dlr, pgd_margin
from robvit.attacks.pgd_min import pgd_min
from robvit.attacks.pixels import eight_bit
from robvit.attacks.published_code import feature_reference, pgd_reference, segpgd_reference
from robvit.attacks.run import judge, run
from robvit.attacks.sanity import (
    AttackWarning,
    AuditedSample,
    PrecisionDisagreement,
    PrecisionOfAudit,
    PrecisionUnavailable,
    PrecisionUnsound,
    RandomisedOutput,
    SoftmaxOutput,
    ZeroGradient,
)
from robvit.attacks.scales import find_scales
from robvit.attacks.segpgd import segpgd
from robvit.attacks.square import square
from robvit.attacks.targets import choose_targets
from robvit.attacks.transfer import transfer
from robvit.attacks.universal import feature_universal, universal
from robvit.attacks.validity import check_adversarial

for _found in iter_modules(__path__):  # files nobody names above file their attacks too
    import_module(f"{__name__}.{_found.name}")

__all__ = [
    "ATTACKS",
    "LOSSES",
    "AttackCheck",
    "AttackInfo",
    "AttackWarning",
    "AuditedSample",
    "Count",
    "Outcome",
    "PrecisionDisagreement",
    "PrecisionOfAudit",
    "PrecisionUnavailable",
    "PrecisionUnsound",
    "RandomisedOutput",
    "SoftmaxOutput",
    "ZeroGradient",
    "aas",
    "aas_uniform",
    "apgd",
    "apgd_ce",
    "apgd_dlr",
    "apgd_t",
    "attack",
    "autoattack",
    "bpda",
    "check_adversarial",
    "choose_targets",
    "cw_l2",
    "eight_bit",
    "eot",
    "fab",
    "fab_t",
    "feature",
    "feature_patch",
    "feature_reference",
    "feature_universal",
    "fgsm",
    "find_scales",
    "frozen",
    "gama",
    "judge",
    "misclassified",
    "patch",
    "pgd",
    "pgd_dlr",
    "pgd_margin",
    "pgd_min",
    "pgd_reference",
    "run",
    "segpgd",
    "segpgd_reference",
    "square",
    "transfer",
    "universal",
    "worst_of",
]
