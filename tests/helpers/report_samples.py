"""Records and images for the tests of the report: with all that a record can hold, and with malice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np

from robvit.record import PARTS, Budget, Curve, Finding, Record, Table, Trial
from robvit.report import GalleryItem

# Whatever of this became markup would change the page's title or break the content policy.
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{7*7}}"


def budget(text: str) -> Budget | None:
    """From "linf 8/255", say; "none" is none."""
    norm, _, eps = text.partition(" ")
    return Budget(norm, float(Fraction(eps))) if eps else None


def trial(attack: str, threat: str, correct: list[bool], scenario: str = "", **settings: object) -> Trial:
    """A trial whose wrong predictions are the next class; labels are the indices modulo ten."""
    predicted = [i % 10 if ok else (i + 1) % 10 for i, ok in enumerate(correct)]
    cost = {"forward": 900, "backward": 400, "seconds": 12.5}
    return Trial(
        attack,
        budget(threat),
        dict(settings),
        correct,
        predicted,
        [0.03] * len(correct),
        scenario=scenario,
        **cost,
    )


def _trials(count: int) -> list[Trial]:
    rng = np.random.default_rng(1)
    clean = [bool(v) for v in rng.random(count) < 0.9]
    strength = rng.random(count)

    def under(level: float) -> list[bool]:
        return [c and bool(s > level) for c, s in zip(clean, strength, strict=True)]

    kept, known = "secret kept", "secret known"
    return [
        trial("clean", "none", clean, kept),
        *(trial("pgd", f"linf {eps}/255", under(eps / 20), kept, steps=10) for eps in (1, 2, 4, 8)),
        *(trial("apgd", "linf 8/255", under(0.42 + s / 1000), kept, steps=s) for s in (5, 20, 100)),
        trial("clean", "none", clean, known),
        trial("apgd", "linf 8/255", under(0.7), known, steps=100),
    ]


def rich_record(name: str = "a-model", count: int = 60) -> Record:
    """A record that fills every section of the page."""
    rng = np.random.default_rng(2)
    loss = (2 * np.exp(-np.arange(900) / 200) + 0.1 * rng.random(900)).tolist()
    rows = [["small", 0.86, 0.93, "cosine"], ["base", None, 0.95, "cosine"]]
    bare = [[1.0, 2.0], [2.0, float("nan")], [12.0, 0.5]]
    names = [f"test/{i:04d}" for i in range(count)]
    gap = {"ours": [[i, 3 / i] for i in range(1, 13)], "bare": bare}
    return Record(
        kind="evaluate",
        model={"name": name, "identity": "ab" * 32},
        data={
            "spec": "sample",
            "digest": "cd" * 32,
            "count": count,
            "labels": [i % 10 for i in range(count)],
            "names": names,
            "classes": [f"kind {i}" for i in range(10)],
        },
        trials=_trials(count),
        metrics={"cosine, clean": 0.93, "not a number": float("nan")},
        history={"train loss": loss, "clean accuracy": np.linspace(0.1, 0.9, 30).tolist()},
        tables=[Table("Table 2", ["model", "ours", "paper", "metric"], rows, "Small scale.")],
        curves=[Curve("Attention gap", "block", "gap", gap)],
        findings=[
            Finding("single step never beats many", "green", "0 of 60 violate it"),
            Finding("more steps", "amber", "1.7 points, within the interval", names[:1]),
            Finding("zero gradients", "red", "12 images have none", names[:12]),
        ],
        notes=["The honest headline is the attacker who knows the secret."],
        protocol={"name": "quick@1", "seeds": [0, 1]},
        command="robvit evaluate a-model sample --protocol quick@1",
    )


def poisoned(record: Record) -> Record:
    """The record with something hostile in every text, keys included; statuses and threats too."""

    def spoil(value: Any) -> Any:
        if isinstance(value, str):
            return value if value == "clean" else value + EVIL
        if isinstance(value, dict) and value.keys() == {"norm", "eps", "psnr"}:
            return Budget(spoil(value["norm"]), value["eps"], value["psnr"])
        if isinstance(value, dict):
            return {spoil(k): spoil(v) for k, v in value.items()}
        return [spoil(v) for v in value] if isinstance(value, list) else value

    content = asdict(record)
    held: dict[str, Any] = {}
    for key, value in content.items():
        if key in PARTS:
            held[key] = [PARTS[key](**{field: spoil(v) for field, v in part.items()}) for part in value]
        elif key in ("model", "data"):
            held[key] = {field: spoil(v) for field, v in value.items()}
        else:
            held[key] = spoil(value)
    return Record(**held)


def gallery_items(count: int, side: int, number: int = 7, attention: bool = False) -> Iterator[GalleryItem]:
    """Smooth coloured images with grain, and a signed noise of eight grey levels."""
    rng = np.random.default_rng(3)
    across = np.linspace(0, 3, side)
    for index in range(count):
        slopes = rng.uniform(1, 4, (3, 2))
        waves = [np.sin(across[:, None] * a + across * b + k) for k, (a, b) in enumerate(slopes)]
        clean = (127 + 100 * np.stack(waves, axis=-1) + rng.normal(0, 9, (side, side, 3))).clip(0, 255)
        noise = 8 * rng.choice([-1, 1], (side, side, 3))
        looks = [rng.random((8, 8), dtype=np.float32) for _ in range(2)] if attention else None
        pixels = clean.astype(np.uint8)
        yield GalleryItem(index, number, (pixels + noise).clip(0, 255).astype(np.uint8), pixels, looks)
