"""Make the images in docs/gallery from what is bundled, and from dinov2-small where it is.

    make gallery

Every image is a figure of `robvit explain` with fewer levels of each colour; commands are printed as
they run. Steps whose result is in runs/gallery already are not run again; remove the folder to start
afresh.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from PIL import Image

from robvit.backbones.weights import state_dict
from robvit.cli import app
from robvit.drawing.images import save_png
from robvit.errors import WeightsUnavailable

WORK, GALLERY = Path("runs/gallery"), Path("docs/gallery")
LEVELS = 52  # of each colour: half the size, and nobody sees it
IMAGES = "sample:3 sample:5 sample:8"

# The folder of a step, its command, and the figures that are taken from it.
BUNDLED = (
    (
        "mini",
        f"explain robvit-mini {IMAGES} --beside robvit-mini-robust",
        ("perturbation", "accumulation", "landscape"),
    ),
)
FOUNDATION = (
    ("demo", "demo --learn 192 --steps 60", ()),
    (
        "dinov2",
        f"explain dinov2-small {IMAGES} --img-size 112 --tokens {WORK}/demo/tokens.safetensors",
        ("massive", "attention", "attending", "gaps", "features"),
    ),
)


def run(folder: str, command: str, figures: tuple[str, ...]) -> None:
    """One step, unless it is done, and its figures into the gallery."""
    out = WORK / folder
    wanted = "".join(f" --figure {name}" for name in figures)
    whole = f"{command}{wanted} --out {out}"
    print(f"robvit {whole}", flush=True)
    if not (out / "record.json").exists():
        app(shlex.split(whole), standalone_mode=False)
    for name in figures:
        with Image.open(out / f"{name}.png") as image:
            save_png(image.convert("RGB"), GALLERY / f"{name}.png", levels=LEVELS)


def main() -> None:
    for step in BUNDLED:
        run(*step)
    try:
        state_dict("dinov2-small")
    except WeightsUnavailable as error:
        print(f"without dinov2-small its images stay as they are: {error}")
    else:
        for step in FOUNDATION:
            run(*step)
    size = sum(file.stat().st_size for file in GALLERY.glob("*.png"))
    print(f"written: {GALLERY} ({size / 1e6:.1f} MB)\nnext: look at every one of them")


if __name__ == "__main__":
    main()
