"""Certificates against patches of one size or several, batch by batch, and what a record tells of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.budget import PATCH, Budget
from robvit.certification.adaptive import LOCATIONS, attacked
from robvit.certification.maps import places_table
from robvit.certification.patches import PatchDefense
from robvit.data import ImageDataset
from robvit.evaluation.parts import Rows
from robvit.record import Curve, Record, Table, Trial
from robvit.statistics import share_of

NO_LABEL = -1  # what is predicted where nothing is certified
COSTS = ("inference seconds", "certificate seconds", "passes")
ATTACK_COSTS = ("attack forward", "attack backward")
COLUMNS = [
    *("patch, pixels", "share of the area, %", "windows", "masks"),
    *("clean, defended, %", "clean from", "clean to", "certified, %", "from", "to"),
    *("disputed, %", "disputed from", "disputed to", "passes", "CPU seconds an image"),
]


class PatchCertificate:
    """Labels that no square patch can change, for patches of each of the `sides` in pixels.

    Sides that touch equally many tokens have the same windows, so that one certificate serves all of them;
    the largest is the one that an attacker takes.
    """

    kind = PATCH

    def __init__(
        self,
        model: Model,
        sides: Sequence[int],
        windows: int | tuple[int, int],
        *,
        maps: bool,
        attack_steps: int = 0,
        seed: int = 0,
    ) -> None:
        self.model, self.maps, self.attack_steps, self.seed = model, maps, attack_steps, seed
        self.sides = sorted(set(sides))
        self.defenses: list[PatchDefense] = []
        self.of: dict[int, int] = {}  # the number of the defence that serves a side
        for side in self.sides:
            found = PatchDefense(model, side, windows=windows)
            if self.defenses and found.cover.windows == self.defenses[-1].cover.windows:
                self.defenses.pop()
            self.defenses.append(found)
            self.of[side] = len(self.defenses) - 1
        self.settings: dict[str, Any] = {
            "patch": self.sides if len(self.sides) > 1 else self.sides[0],
            "windows": [list(defense.cover.shape) for defense in self.defenses],
            "masks": [len(defense.cover.pairs) for defense in self.defenses],
            "maps": maps,
            **({"attack_steps": attack_steps, "locations": LOCATIONS, "seed": seed} if attack_steps else {}),
        }

    @property
    def facts(self) -> list[Any]:
        """What decides the outcomes, beside model and images."""
        windows = [[sorted(window) for window in defense.cover.windows] for defense in self.defenses]
        return [self.kind, self.settings, windows]

    @property
    def meaning(self) -> str:
        """What is certified, in words."""
        sizes = " or ".join(f"{side}x{side}" for side in self.sides)
        rows, columns = self.model.input_size
        windows = [len(window) for defense in self.defenses for window in defense.cover.windows]
        return (
            f"A certified image keeps its label under the defended inference whatever one square patch of "
            f"{sizes} pixels anywhere on the {rows}x{columns} input holds, "
            f"in the white box. Windows of at most {max(windows)} of the "
            f"{len(self.defenses[0].cover.kept())} tokens cover every place of the patch, which was checked "
            "one by one; dropped tokens are left out of the sequence. The model without this inference, two "
            "patches, larger ones and small changes all over the image are not covered."
        )

    @torch.no_grad()
    def outcomes(self, images: ImageDataset) -> Rows:
        x, y = (part.to(self.model.mean.device) for part in images.tensors())
        rows: Rows = {"plain": self.model(x).argmax(-1).tolist()}
        for number, defense in enumerate(self.defenses):
            start = time.process_time()
            answers = defense.asked(x)
            defended = defense.decide(answers)
            middle = time.process_time()
            each = self.maps or self.attack_steps
            places = defense.safe_places(answers, y) if each else defense.safe(answers, y)[:, None]
            end = time.process_time()
            found: Rows = {
                "label": defended.label.tolist(),
                "disputed": defended.disputed.tolist(),
                "certified": places.all(1).tolist(),
                **({"places": places.tolist()} if self.maps else {}),
            }
            costs = dict(zip(COSTS, (middle - start, end - middle, answers.passes), strict=True))
            if self.attack_steps:
                how = {"steps": self.attack_steps, "seed": self.seed}
                hit = attacked(defense, x, y, defended.label, places, **how)
                found |= {"attacked": hit.label.tolist(), "distance": hit.distance.tolist()}
                costs |= dict(zip(ATTACK_COSTS, (hit.forward, hit.backward), strict=True))
            found |= {name: [cost / len(x)] * len(x) for name, cost in costs.items()}
            rows |= {f"{number}/{name}": values for name, values in found.items()}
        return rows

    def fill(self, record: Record, rows: Rows, labels: list[int]) -> None:
        """Put what was found into the record: trials, figures to quote, and the curve of several sides."""
        plain = trial("clean", rows["plain"], labels, scenario="without the defence", control=True)
        record.trials = [plain, *(one for side in self.sides for one in self._trials(side, rows, labels))]
        for side in self.sides:
            record.metrics |= self._metrics(side, rows)
        record.tables = [Table("Certified by the size of the patch", COLUMNS, self._table(rows, labels))]
        if self.attack_steps:
            record.tables.append(self._attacked_table(rows, labels))
        if len(self.sides) > 1:
            record.curves = [self._curve(record)]
        if self.maps:
            for number, defense in enumerate(self.defenses):
                record.tables.append(places_table(rows[f"{number}/places"], defense.cover))

    def _name(self, side: int, what: str) -> str:
        return what if len(self.sides) == 1 else f"{what}, patch {side}"

    def _rows(self, side: int, rows: Rows) -> Rows:
        number = f"{self.of[side]}/"
        return {name.removeprefix(number): v for name, v in rows.items() if name.startswith(number)}

    def _trials(self, side: int, rows: Rows, labels: list[int]) -> list[Trial]:
        own, scenario = self._rows(side, rows), self._name(side, "defended")
        sure = [
            label if held else NO_LABEL for label, held in zip(own["label"], own["certified"], strict=True)
        ]
        found = [
            trial("clean", own["label"], labels, scenario=scenario),
            trial("certificate", sure, labels, Budget(PATCH, side), scenario=scenario),
        ]
        if side in self._attacked_sides():
            wrong = [place for place, correct in enumerate(found[0].correct) if not correct]
            found.append(self._attack_trial(side, own, labels, scenario=scenario, skipped=wrong))
        return found

    def _attack_trial(self, side: int, own: Rows, labels: list[int], **about: Any) -> Trial:
        forward, backward = (round(sum(own[name])) for name in ATTACK_COSTS)
        return trial(
            "patch",
            own["attacked"],
            labels,
            Budget(PATCH, side),
            settings={"steps": self.attack_steps, "locations": LOCATIONS, "seed": self.seed},
            distance=own["distance"],
            forward=forward,
            backward=backward,
            **about,
        )

    def _metrics(self, side: int, rows: Rows) -> dict[str, float]:
        own, found = self._rows(side, rows), dict[str, float]()
        for what, hits in (("certified accuracy", own["certified"]), ("disputed", own["disputed"])):
            found[self._name(side, what)] = sum(hits) / len(hits)
        for what in COSTS:
            found[self._name(side, f"{what} an image")] = sum(own[what]) / len(own[what])
        return found

    def _table(self, rows: Rows, labels: list[int]) -> list[list[Any]]:
        lines, area = [], self.model.input_size[0] * self.model.input_size[1]
        for side in self.sides:
            own, cover = self._rows(side, rows), self.defenses[self.of[side]].cover
            correct = [a == b for a, b in zip(own["label"], labels, strict=True)]
            outcomes = (correct, own["certified"], own["disputed"])
            shares = [100 * share for hits in outcomes for share in share_of(hits)]
            seconds = sum(own["inference seconds"]) + sum(own["certificate seconds"])
            windows = f"{cover.shape[0]}x{cover.shape[1]}"
            costs = [sum(own["passes"]) / len(labels), seconds / len(labels)]
            lines.append([side, 100 * side**2 / area, windows, len(cover.pairs), *shares, *costs])
        return lines

    def _attacked_sides(self) -> list[int]:
        return [defense.cover.patch for defense in self.defenses if self.attack_steps]

    def _attacked_table(self, rows: Rows, labels: list[int]) -> Table:
        """What the defence's own attacker leaves of it, and whether he took anything that was certified."""
        lines: list[list[Any]] = []
        for side in self._attacked_sides():
            own = self._rows(side, rows)
            held = [a == b for a, b in zip(own["attacked"], labels, strict=True)]
            taken = sum(sure and not kept for sure, kept in zip(own["certified"], held, strict=True))
            shares = (sum(own["certified"]) / len(held), *share_of(held))
            lines.append([side, len(held), *(100 * share for share in shares), taken])
        columns = ["patch, pixels", "images", "certified, %", "under attack, %", "from", "to"]
        note = (
            f"The attacker has everything and tries {LOCATIONS} places on an image, first those that no safe "
            f"window is over, with {self.attack_steps} steps at each; the rule judges what that finds."
        )
        return Table(
            "The defence under patches made for it", [*columns, "certified ones that fell"], lines, note
        )

    def _curve(self, record: Record) -> Curve:
        lines: dict[str, list[list[float]]] = {}
        for name, attack in (("certified", "certificate"), ("defended, without a patch", "clean")):
            found = [one for one in record.trials if one.attack == attack and not one.control]
            lines[name] = [
                [side, *share_of(one.correct)] for side, one in zip(self.sides, found, strict=True)
            ]
        note = "Whiskers are 95 % intervals."
        return Curve("Accuracy by the size of the patch", "side in pixels", "accuracy", lines, note, True)


def trial(
    attack: str,
    pred: list[int],
    labels: list[int],
    threat: Budget | None = None,
    *,
    settings: dict[str, Any] | None = None,
    distance: list[float] | None = None,
    **about: Any,
) -> Trial:
    """What was predicted beside what is true; without a distance nothing was changed."""
    correct = [a == b for a, b in zip(pred, labels, strict=True)]
    return Trial(attack, threat, settings or {}, correct, pred, distance or [0.0] * len(pred), **about)
