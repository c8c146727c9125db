"""What can go wrong, by name, and the checks at the public doors.

    RobvitError
    |- InputError          images, labels or settings that cannot be right
    |- UnknownName         a name no registry holds
    |- Unsupported         the model's family cannot do what was asked
    |- WrongBackbone       tokens, a head or adapters made for other weights
    |- WeightsUnavailable  no source has the weights
    |- CannotFetch         a file from elsewhere that did not come, or is another one
    |- DataError           a dataset that is empty, broken or of another layout
    |  |- ImageError       an image that cannot be decoded right (robvit.decoding)
    |  |- NoSplits         a folder without splits, of which one was asked for (robvit.data.folders)
    |- CannotShare         a folder that the model hub did not take or give
    |- CannotWrite         a full disk, or a place that may not be written
    |- Busy                another run is at work in the same folder
    |- Diverged            a training whose loss or gradient is no number any more
    |- BrokenAttack        an attack left its budget or returned something that is not an image
    |- BrokenCertificate   windows that leave a place of the patch open
    |- BrokenExport        an exported file that does not give the model's answers (robvit.exporting.parity)
    |- NotInvariant        new tokens that change clean features too much (robvit.defenses.rotate)
    |- TimeLimit           a request to the app that took too long (robvit.app.session)

Every message says what was expected, what came, and what to do. Nothing here recovers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORE = 255  # the label of pixels that count for nothing


class RobvitError(Exception):
    """Anything robvit refuses; the command line prints its message without a traceback."""


class InputError(RobvitError, ValueError):
    """Images, labels or settings that cannot be right."""


class UnknownName(RobvitError, KeyError):
    """A name no registry holds."""

    def __str__(self) -> str:  # KeyError would show the message quoted
        return str(self.args[0])


class Unsupported(RobvitError):
    """The model's family cannot do what was asked."""


class WrongBackbone(RobvitError):
    """Tokens, a head or adapters made for other weights."""


class WeightsUnavailable(RobvitError):
    """No source has the weights."""


class CannotFetch(RobvitError):
    """A file from elsewhere that did not come, or is another one than expected."""


class CannotShare(RobvitError):
    """A folder that the model hub did not take or give."""


class DataError(RobvitError):
    """A dataset that is empty, broken or of another layout."""


class CannotWrite(RobvitError, OSError):
    """A file could not be written; what was there before is still there."""


class Busy(RobvitError):
    """Another run is at work in the same folder."""


class Diverged(RobvitError):
    """A training left the numbers; the last good state is kept."""


class BrokenAttack(RobvitError):
    """An attack left its budget or returned something that is not an image."""


class BrokenCertificate(RobvitError):
    """Windows that leave a place of the patch open, so that they prove nothing."""


def check_images(x: torch.Tensor) -> None:
    """Refuse anything but float images (B 3 H W) in [0,1]."""
    if x.ndim != 4 or x.shape[1] != 3:
        shape = tuple(x.shape)
        raise InputError(f"images must be (B 3 H W), got {shape}; add the batch axis or convert to RGB")
    if not x.is_floating_point():
        raise InputError(f"images must be floats in [0,1], got {x.dtype}; divide 8-bit images by 255")
    if x.numel() == 0:
        raise InputError(f"images must not be empty, got {tuple(x.shape)}")
    low, high = (float(v) for v in x.detach().aminmax())
    if not (low >= 0 and high <= 1):  # also catches NaN
        raise InputError(
            f"images must lie in [0,1], got [{low:.2f}, {high:.2f}]; "
            "the backbone normalises, so pass raw pixels / 255"
        )


def check_batch(batch: int) -> None:
    """Refuse a number of images in one pass that is none."""
    if batch < 1:
        raise InputError(f"batch must be 1 or more images, got {batch}; 32 is usual")


def check_labels(y: torch.Tensor, count: int, classes: int | None = None) -> None:
    """Refuse labels that are not `count` whole numbers in [0, classes)."""
    if y.ndim != 1 or len(y) != count:
        raise InputError(f"labels must be ({count},), one an image, got {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or str(y.dtype) == "torch.bool":
        raise InputError(f"labels must be whole numbers, got {y.dtype}; use .long()")
    if classes is not None and count and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise InputError(
            f"labels must lie in 0..{classes - 1}, the model's classes, got {int(y.min())}..{int(y.max())}; "
            "check that the model was trained on this dataset"
        )
