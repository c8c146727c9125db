"""Long work in parts: each batch's outcomes in a file of its own, so that an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robvit.data import ImageDataset
from robvit.files import parse_json, read_text, write_json
from robvit.progress import Advance
from robvit.resuming import versions

Rows = dict[str, list[Any]]  # a list over the images by the name of what it holds


def in_parts(
    make: Callable[[ImageDataset], Rows],
    images: ImageDataset,
    folder: Path,
    *,
    facts: Any,
    batch: int,
    progress: Advance,
) -> Rows:
    """What `make` gives for each batch of the images, joined; finished batches of the same run are read.

    `facts` are all else that decides the outcomes; those of other facts, images or batches lie elsewhere.
    """
    decisive = json.dumps([facts, images.facts(), batch, versions()], sort_keys=True)
    place = folder / "parts" / hashlib.sha256(decisive.encode()).hexdigest()[:16]
    rows: Rows = {}
    for number, first in enumerate(range(0, len(images), batch)):
        some = images.take(range(first, min(first + batch, len(images))))
        path = place / f"part-{number:05d}.json"
        if path.exists():
            part = parse_json(read_text(path, "a part of a run"), path, "a part of a run")
        else:
            part = make(some)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, part)
        for name, values in part.items():
            rows.setdefault(name, []).extend(values)
        progress(len(some) / len(images))
    return rows
