"""The images that a part of a model was trained on: their size, and how they became square.

A part at another size, or behind another fitting of images, still answers, only worse. So both are kept in
its file, taken where nothing else is asked for, and never changed in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robvit.errors import InputError

if TYPE_CHECKING:
    from robvit.backbones.model import Model

RESIZE = ("squash", "crop")
LORA = "LoRA"


class OtherSize(UserWarning):
    """Factors at another image size than the one they were trained for."""


@dataclass(frozen=True)
class TrainedOn:
    """Rows and columns of the images, and "squash" or "crop"; nothing where it is not known."""

    size: tuple[int, int] | None = None
    resize: str = ""

    @classmethod
    def told_by(cls, settings: Mapping[str, Any]) -> TrainedOn:
        """What the settings in a file tell; a file may say anything."""
        size, resize = settings.get("img_size") or None, settings.get("resize") or ""
        if size is not None:
            whole = isinstance(size, list | tuple) and len(size) == 2
            if not whole or not all(type(side) is int and 1 <= side <= 4096 for side in size):
                raise InputError(f"img_size must be two sides in pixels, got {str(size)[:60]}; it is damaged")
            size = (size[0], size[1])
        if resize and resize not in RESIZE:
            raise InputError(f"resize must be {' or '.join(RESIZE)}, got {str(resize)[:60]!r}; it is damaged")
        return cls(size, resize)

    def settings(self) -> dict[str, Any]:
        """The same as values for a file."""
        return {"img_size": list(self.size or ()), "resize": self.resize}

    def check(self, what: str, model: Model) -> None:
        """Refuse a model for images of another size.

        Factors are weights of the network, which work at any size that is asked for, with a warning.
        """
        if self.size in (None, model.input_size):
            return
        text = f"the {what} was trained on images of {_pixels(self.size)} pixels, {model.name} takes "
        text += _pixels(model.input_size)
        if what != LORA:
            raise InputError(
                f"{text}; load it for the same size (--img-size), or train the {what} at this one"
            )
        warnings.warn(f"{text}; what was measured of it does not hold here", OtherSize, stacklevel=4)


def agreed_size(parts: Mapping[str, Any]) -> tuple[int, int] | None:
    """The image size that a model's parts were trained on, if they tell; a contradiction is refused."""
    known = {what: part.trained_on.size for what, part in parts.items() if part is not None}
    known = {what: size for what, size in known.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"the {what} on {_pixels(size)}" for what, size in known.items())
        raise InputError(f"trained on images of different sizes: {listed}; train them at one")
    return next(iter(known.values()), None)


def resizes_of(**parts: Any) -> dict[str, str]:
    """How images became square for each of the parts that tell."""
    known = {what: getattr(getattr(part, "trained_on", None), "resize", "") for what, part in parts.items()}
    return {what: how for what, how in known.items() if how}


def agreed_resize(known: Mapping[str, str]) -> str:
    """How images became square for all of these parts; a contradiction is refused."""
    if len(set(known.values())) > 1:
        listed = ", ".join(f"the {what} by {how}" for what, how in known.items())
        raise InputError(f"images became square differently: {listed}; train them alike")
    return next(iter(known.values()), "")


def fitting(model: object, wanted: str | None) -> str:
    """How images are made square for a model: as for what it carries, unless "squash" or "crop" is wanted.

    What contradicts the training of a part is refused.
    """
    own, usual = (getattr(model, name, "") for name in ("resize", "usual_resize"))
    own = own if isinstance(own, str) else ""  # a network of anybody's may have a method of this name
    if wanted and own and wanted != own:
        raise InputError(
            f"{getattr(model, 'name', 'the model')} carries what was trained on images made square by {own}, "
            f"got {wanted}; leave --resize out, or train it anew"
        )
    return wanted or own or (usual if isinstance(usual, str) else "") or "squash"


def _pixels(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
