"""The clean images that a record's adversarial images were made from."""

from __future__ import annotations

from collections.abc import Callable

from robvit.attacks.pixels import levels
from robvit.data.opening import recorded_images
from robvit.drawing.images import Pixels
from robvit.errors import RobvitError
from robvit.progress import Log
from robvit.record import Record


def originals_of(
    record: Record, side: int, images: str | None = None, *, log: Log = print
) -> Callable[[int], Pixels] | None:
    """The originals by their place in the record, uint8 (side side 3), if they are the very ones it names.

    They are looked for in `images`, a folder or dataset, else where the record says. What is wrong with
    `images` is an error; where the record alone leads nowhere, `log` is told, and there are none.
    """
    data = record.data
    try:
        found = recorded_images(data, images, side)
        if found.digest() != data.get("digest"):
            raise RobvitError("their names and labels are not those of the record")
    except RobvitError as error:
        if images:
            raise
        log(f"the originals are not shown: {error}; give them with --images")
        return None
    return lambda place: levels(found[place][0]).permute(1, 2, 0).numpy()
