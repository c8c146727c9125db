"""Whether an adversarial image is one: an image, inside its budget, in whole grey levels if wanted."""

from __future__ import annotations

import torch

from robvit.errors import BrokenAttack
from robvit.threat import Threat


def check_adversarial(x: torch.Tensor, adv: torch.Tensor, threat: Threat, eight_bit: bool = False) -> None:
    """Raise BrokenAttack unless every adversarial image (B 3 H W) is an image inside its budget.

    With `eight_bit` every value must also be a whole number of grey levels, so that saving as PNG
    changes nothing. The tolerance is the threat's for this type of numbers, the same before and after
    rounding to grey levels.
    """
    if adv.shape != x.shape or adv.dtype != x.dtype:
        raise BrokenAttack(
            f"an attack must return {x.dtype} {tuple(x.shape)}, got {adv.dtype} {tuple(adv.shape)}"
        )
    if not bool(adv.isfinite().all()):
        raise BrokenAttack("an attack must return finite values, got NaN or infinity")
    low, high = (float(v) for v in adv.aminmax())
    if low < 0 or high > 1:
        raise BrokenAttack(f"an attack must stay in [0,1], got [{low:.6g}, {high:.6g}]")
    unit = 2 * torch.finfo(x.dtype).eps
    delta = adv.double() - x.double()
    size = threat.size(delta)
    if bool((size > threat.eps + threat.tolerance(x)).any()):
        worst = int(size.argmax())
        raise BrokenAttack(
            f"image {worst} must stay within {threat}, got {threat.norm} {float(size[worst]):.8g}"
        )
    rms = delta.flatten(1).norm(dim=1)
    if bool((rms > threat.radius(x) * (1 + 1e-6) + unit * delta[0].numel() ** 0.5).any()):
        raise BrokenAttack(
            f"every image must keep a PSNR of {threat.psnr} dB, image {int(rms.argmax())} does not"
        )
    if eight_bit and bool(((adv.double() * 255).frac().sub(0.5).abs() < 0.5 - 255 * unit).any()):
        raise BrokenAttack("values must be whole grey levels n/255, got others; round inside the ball first")
