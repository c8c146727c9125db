"""Which augmentations a recipe may ask for: the part of `data/augment.py` that is checked without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class Augment(BaseModel):
    """Which augmentations there are and how strong; everything is off unless it is set.

    `crop` is "none", "pad" (pad by `pad` pixels, then crop) or "resized" (a random part of area `scale`
    and of aspect `ratio`, resized). `mixup` and `cutmix` are the alphas of their Beta distributions; a
    batch is mixed with probability `mix_share`, by either if both are on. `randaugment` operations come
    from torchvision's list, or with `policy` "deit" from DeiT's own, timm's, whose magnitudes vary.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    crop: Literal["none", "pad", "resized"] = "none"
    pad: Annotated[int, Field(ge=1)] = 4
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    rotate: NotNegative = 0.0
    jitter: Share = 0.0
    randaugment: Annotated[int, Field(ge=0)] = 0
    policy: Literal["torchvision", "deit"] = "torchvision"
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    erase: Share = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    mix_share: Share = 1.0

    @property
    def takes_any_size(self) -> bool:
        """Whether images may keep the size they are stored in until they are cropped."""
        return self.crop == "resized"
