"""`robvit.attack_dataset`: a whole data set attacked, and what came of it as images, a sheet and a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from PIL import Image

from robvit.drawing.images import pixels, save_png
from robvit.drawing.sheet import Pair, attack_sheet
from robvit.evaluation.attack_shards import Job, attack_masks, craft, judge_clean, shards
from robvit.evaluation.masks import MaskScore
from robvit.processes import processes
from robvit.progress import Advance, silent
from robvit.record import Record, Table

SHOWN = 8  # pairs on the sheet


def attack_dataset(
    job: Job,
    out: str | Path,
    *,
    command: str = "",
    progress: Advance = silent,
) -> Record:
    """Attack every image of a job; PNGs, a sheet and the record are written to the folder `out`.

    With masks the record holds the mean IoU and each image's pixel accuracy, clean and attacked, in
    place of trials. Started again in the same folder it goes on where it stopped; under `accelerate
    launch` several processes share the work, and the first of them writes.
    """
    out = Path(out)
    record = Record(
        kind="attack",
        model={"name": _name(job.judged), "surrogate": _name(job.model), "identity": job.identity},
        data=job.images.facts(),
        trials=[],
        command=command,
    )
    if job.images.kind == "masks":
        _add_scores(record, *attack_masks(job, out / "shards", progress))
    else:
        trial = craft(job, out / "shards", progress)
        record.trials = [judge_clean(job), replace(trial, shards="shards")]
    if processes().is_main_process:
        _write_images(job, out, record)
        record.save(out / "record.json")
    return record


def _name(model: object) -> str:
    return str(getattr(model, "name", ""))


def _add_scores(record: Record, clean: MaskScore, attacked: MaskScore) -> None:
    for when, score in (("clean", clean), ("attacked", attacked)):
        record.metrics[f"{when} mIoU"] = score.miou
        record.metrics[f"{when} pixel accuracy"] = score.mean_accuracy
    rows = zip(record.data["names"], clean.accuracy, attacked.accuracy, strict=True)
    record.tables.append(
        Table("Pixel accuracy of each image", ["image", "clean", "attacked"], [list(r) for r in rows])
    )


def _write_images(job: Job, out: Path, record: Record) -> None:
    pairs: list[Pair] = []
    alike = Counter(Path(name).with_suffix(".png") for name in job.images.names)
    for some, shard in zip(job.batches(), shards(out / "shards", len(job.batches())), strict=True):
        for place, adv in enumerate(shard.adv.permute(0, 2, 3, 1).numpy()):
            name = Path(some.names[place]).with_suffix(".png")
            if alike[name] > 1:  # a.jpg and a.png may lie side by side
                name = Path(f"{some.names[place]}.png")
            save_png(Image.fromarray(adv), out / "images" / name)
            if len(pairs) < SHOWN:
                pairs.append(Pair(pixels(some[place][0]), adv, *_captions(job, record, len(pairs))))
    save_png(attack_sheet(pairs, title=f"{job.attack} within {job.threat}"), out / "sheet.png")


def _captions(job: Job, record: Record, place: int) -> tuple[str, str, bool]:
    """What was there, what is seen after the attack, and whether the model withstood it."""
    if not record.trials:
        _, before, after = record.tables[0].rows[place]
        return f"{before:.0%} of pixels right", f"{after:.0%} of pixels right", after > before / 2
    names, trial = job.images.classes, record.trials[-1]
    return names[job.images.labels[place]], names[trial.predicted[place]], trial.correct[place]
