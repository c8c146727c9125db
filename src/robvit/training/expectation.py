"""What a tuning may be expected to reach, from results that were recorded; nothing is guessed."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

from robvit.backbones.model import Model
from robvit.budget import Budget
from robvit.errors import InputError
from robvit.record import Record
from robvit.training.tuning import Tuning

# The results of a checkout, or those of the folder that robvit is started in.
PLACES = (Path(__file__).parents[3] / "results", Path("results"))


def expected(model: Model, tuning: Tuning, places: tuple[Path, ...] = PLACES) -> str:
    """What the nearest recorded tuning of these weights at this size kept under attack, in words."""
    nothing = f"nothing is recorded for {_what(model, tuning)}, so nothing can be said of what it will reach"
    return recorded(model, tuning, places) or nothing


def _what(model: Model, tuning: Tuning) -> str:
    return f"{model.name} at {model.input_size[0]} pixels, method {tuning.method}"


def recorded(model: Model, tuning: Tuning, places: tuple[Path, ...] = PLACES) -> str:
    """The same, or nothing where no record tells of it."""
    records = list(_records(places))
    mine = {"fingerprint": model.fingerprint(), "input": list(model.input_size)}
    tunings = [
        r
        for r in records
        if r.kind == "robustify"
        and "tuned fingerprint" in r.model
        and all(r.model.get(key) == value for key, value in mine.items())
        and r.model["settings"]["method"] == tuning.method
    ]
    judged = [
        (abs(one.model["settings"]["eps"] - tuning.eps), number, one, verdict)
        for number, one in enumerate(tunings)
        for verdict in records
        if verdict.kind == "evaluate"
        and verdict.attacks()
        and verdict.model.get("fingerprint") == one.model["tuned fingerprint"]
    ]
    if not judged:
        return ""
    _, number, nearest, _ = min(judged, key=lambda entry: entry[:2])
    kept = []
    for _, owner, _, verdict in judged:
        if owner == number:
            row = verdict.headline()
            share = f"{row.share:.0%} ({row.low:.0%} to {row.high:.0%})"
            kept.append(f"{share} of {len(verdict.still_correct())} images at {row.threat}")
    settings, minutes = nearest.model["settings"], nearest.metrics["seconds"] / 60
    eps = Budget("linf", settings["eps"]).amount
    done = f"{settings['steps']} steps of {settings['batch']} images, eps {eps}"
    return (
        f"recorded for {_what(model, tuning)}: after {minutes:.0f} minutes ({done}) correct under every "
        f"attack tried were {'; '.join(kept)}"
    )


def _records(places: tuple[Path, ...]) -> Iterator[Record]:
    """The packed records below the first of the folders that is there; what cannot be read is passed over."""
    root = next((place for place in places if place.is_dir()), None)
    for packed in sorted(root.glob("*/*.json.gz")) if root else ():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            try:
                path.write_bytes(gzip.decompress(packed.read_bytes()))
                yield Record.load(path)
            except (InputError, OSError, EOFError):
                continue
