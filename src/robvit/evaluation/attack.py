"""A whole dataset attacked, and what came of it as adversarial images, a sheet and a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from robvit.attacks import ATTACKS
from robvit.attacks.compute import Compute, settle
from robvit.attacks.core import check_settings
from robvit.attacks.cost import Passes, forecast_of, probed
from robvit.attacks.precision import check_precision
from robvit.attacks.sanity import PrecisionOfAudit
from robvit.attacks.targets import RULES
from robvit.attention import attention_layers
from robvit.autoattack import is_audited
from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset
from robvit.drawing.images import pixels, save_png
from robvit.drawing.sheet import Pair, attack_sheet
from robvit.errors import InputError
from robvit.evaluation.attack_shards import AttackJob, Shards, run_job
from robvit.evaluation.claims import chance_notes
from robvit.evaluation.classifiers import (
    Classifier,
    Judged,
    aligned,
    check_fit,
    fitted,
    model_facts,
    open_classifier,
)
from robvit.evaluation.doubts import doubts
from robvit.evaluation.forecast import passes_of
from robvit.evaluation.masks import MaskScore
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images, learned_settings, public_images
from robvit.evaluation.trials import as_asked
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, Log, part_of, silent
from robvit.record import Record, Table
from robvit.registry import unknown
from robvit.statistics import interval, mean_of
from robvit.threat import Threat

SHOWN = 8  # pairs on the sheet
SEGMENTED = "Segmentation under attack"
SEGMENTED_NOTE = "mIoU of all pixels together; the mean of images' pixel accuracies with its 95 % interval."
USUAL = Threat("linf", 8 / 255)


def attack(
    model: Judged,
    data: Data,
    *,
    attack: str = "pgd",
    threat: Threat = USUAL,
    settings: dict[str, Any] | None = None,
    surrogate: Judged | None = None,
    target: str | int | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    precision: str = "auto",
    compiler: str | None = None,
    seed: int = 0,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Attack every image of a dataset, and tell what the model makes of them before and after.

    Images with masks take a model that returns a class for each pixel, and `segpgd`; the record then holds
    the mean IoU and each image's pixel accuracy in place of trials. Several processes (`accelerate launch`)
    share the work, and the first of them writes.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: an image set, or what `open_data` opens.
    attack: one of `robvit.attacks.ATTACKS`.
    threat: the norm and the budget that every adversarial image keeps, also after rounding to 8 bits.
    settings: those of the attack, such as {"steps": 20}.
    surrogate: another model on which images are made (transfer); `model` judges them.
    target: "random", "least-likely" or "most-likely", among wrong classes, or a class by its name or number:
        the attack then aims at it, and the record tells for how many images it is predicted.
    out: a folder for adversarial images, sheet.png, shards and record.json, from which an interrupted run
        resumes; without it nothing is left behind.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images, drawn by a fixed seed; all if left out, where the command takes 64.
    batch: images in one pass.
    precision: of the search, whose successes fp32 confirms: "fp32", "bf16", "fp16", or "auto", which probes
        what is fastest on this device and keeps to it in the folder `out`.
    compiler: compiles the attacked model first, "inductor", say; pays on a GPU.
    seed: decides every random draw.
    log: takes in words how many images there are, how it is computed and a forecast of the cost.
    progress: takes shares of the work, one in all, with a note each.
    command: what a person typed, for the record.
    """
    check_precision(precision, auto=True)
    given = ({"seed": seed} if "seed" in ATTACKS.info(attack).defaults else {}) | (settings or {})
    check_settings(attack, given)
    judged = open_classifier(model)
    source = judged if surrogate is None else open_classifier(surrogate)
    if source.black_box and ATTACKS.info(attack).gradients:
        raise InputError(
            f"{attack} needs gradients, {source.name} is a black box; take square, or make the images on "
            "another model (--surrogate)"
        )
    images = judged_images(data, Subset(), split=split, limit=limit, log=log)
    size, fit = _common_size(judged, source) or images.size, fitting(judged.net, resize)
    images = aligned(judged, images.resized(size, fit))
    aim = _target(target, attack, images)
    models = [source] if surrogate is None else [source, judged]
    for one in models:
        check_fit(one, images, masks=True)
    public = public_images(None, data, images, split=split)
    ready, learned = learned_settings(attack, given, source, public)
    job = AttackJob(
        attack,
        threat,
        ready,
        fitted(source.net, images),
        "+".join(one.identity for one in models),
        images,
        None if surrogate is None else fitted(judged.net, images),
        batch=batch,
        compiler=compiler,
        passes=(cost := passes_an_image(attack, ready, threat, source, images)).forward,
        target=aim,
    )
    names = {} if surrogate is None else {"surrogate": source.name}
    record = Record(
        "attack", model_facts(judged) | names, images.facts(), [], metrics=learned, command=command
    )
    with kept_in(out) as folder:
        compute = settled(job, "fp32" if source.black_box else precision, folder / "compute.json")
        job = replace(job, precision=compute.precision)
        with compute.in_use():
            if log is not silent:
                log(_forecast(job, cost, compute))
            done = run_job(job, folder / "shards", part_of(progress, 1 / len(images)))
        record.protocol, record.machine = {"batch": batch, **compute.rules()}, compute.machine()
        record.notes = [*doubts(judged, images), *compute.notes()]
        if images.kind == "masks":
            _add_scores(record, job, *done.mask_scores())
        else:
            record.audits = done.audits()
            record.notes += map(str, record.audits)
            attacked = as_asked(done.trial(None if out is None else folder, **names), given, ready)
            record.trials = [done.clean_trial(), attacked]
            if target is not None:
                record.tables.append(_targeted_table(record, images))
            record.notes += chance_notes(record)
        if out is not None and processes().is_main_process:
            _write_images(done, folder, record)
            record.save(folder / "record.json")
    return record


def passes_an_image(
    attack: str, settings: dict[str, Any], threat: Threat, source: Classifier, images: ImageDataset
) -> Passes:
    """The passes of an image that stays correct; none where they cannot be counted."""
    info = ATTACKS.info(attack)
    if info.task != "classes" or images.kind != "labels":
        return Passes(0, 0)
    layers = len(attention_layers(source.net)) if info.needs == "attention" else 0
    try:
        return passes_of(attack, settings, threat, max(len(images.classes), 2), layers)
    except Exception:  # anybody's attack may not work on a toy; a real mistake comes to light in the run
        return Passes(0, 0)


def _forecast(job: AttackJob, passes: Passes, compute: Compute) -> str:
    """What the job will cost, where that can be counted, and how it is computed."""
    cost = ""
    if passes.forward:
        x = _few(job)
        cost = f"{forecast_of(passes.times(len(job.images)), compute.searched(job.model), x)}; "
    return f"{job.attack} on {len(job.images)} images: {cost}{compute}"


def _target(target: str | int | None, attack: str, images: ImageDataset) -> str | int | None:
    """What the attack aims at: a rule, or the number of a class; refuses what is neither."""
    if target is None:
        return None
    if "targeted" not in ATTACKS.info(attack).defaults:
        able = ", ".join(entry.name for entry in ATTACKS if "targeted" in entry.info.defaults)
        raise InputError(f"{attack} aims at no class; these attacks do: {able}")
    if target in RULES:
        return target
    if str(target) in images.classes:
        return images.classes.index(str(target))
    if str(target).isdecimal() and int(target) < (len(images.classes) or int(target) + 1):
        return int(target)
    raise unknown("target", str(target), [*RULES, *images.classes])


def _targeted_table(record: Record, images: ImageDataset) -> Table:
    """How often the target is predicted, over the images whose label it is not."""
    trial = record.trials[-1]
    rows = zip(trial.predicted, trial.targets, images.labels, strict=True)
    hits = [predicted == target for predicted, target, label in rows if target != label]
    low, high = (100 * bound for bound in interval(sum(hits), len(hits)))
    share = 100 * sum(hits) / max(len(hits), 1)
    aimed = str(trial.settings["target"])
    if aimed.isdecimal():
        aimed = _class_name(images, int(aimed))
    return Table(
        "Targeted success in per cent",
        ["attack", "target", "images", "predicted as the target", "low", "high"],
        [[trial.attack, aimed, len(hits), share, low, high]],
        "Success is that the target is predicted; images of the target's own class are not counted. Low and "
        "high bound the 95 % interval. Accuracy counts images that are still classified correctly.",
    )


def settled(job: AttackJob, precision: str, keep: Path) -> Compute:
    """How the job is computed: chosen on a few of its images."""
    passes = 2 * job.passes * len(job.images)  # a backward pass beside most of them
    net = job.model.to(processes().device)
    audited = is_audited(job.attack, job.settings)
    found = settle(net, _few(job), wanted="fp32" if audited else precision, passes=passes, keep=keep)
    named = [PrecisionOfAudit.__name__] if audited and precision not in ("auto", "fp32") else []
    return replace(found, wanted=precision, warnings=found.warnings + named)


def _few(job: AttackJob) -> torch.Tensor:
    """The images of a probe (B 3 H W)."""
    device = processes().device
    few = job.images.take(range(probed(min(job.batch, len(job.images)), device.type)))
    return few.tensors()[0].to(device)


def _common_size(judged: Classifier, source: Classifier) -> int | None:
    """The side of images that both models take."""
    if judged.size and source.size and judged.size != source.size:
        raise InputError(
            f"both models must take images of one size, {judged.name} takes {judged.size} pixels a side, "
            f"{source.name} {source.size}; load one of them with img_size={judged.size}"
        )
    return judged.size or source.size


def _add_scores(record: Record, job: AttackJob, clean: MaskScore, attacked: MaskScore) -> None:
    """The scores as metrics, and as tables with intervals and image by image."""
    assert job.threat is not None
    summary: list[list[object]] = []
    for when, score in (("clean", clean), ("attacked", attacked)):
        under = "no attack" if when == "clean" else f"{job.attack}, {job.threat}"
        accuracy = [100 * value for value in mean_of(score.accuracy)]
        summary.append([under, len(score.accuracy), 100 * score.miou, *accuracy])
        record.metrics[f"{when} mIoU"] = score.miou
        record.metrics[f"{when} pixel accuracy"] = score.mean_accuracy
    rows = zip(record.data["names"], clean.accuracy, attacked.accuracy, strict=True)
    record.tables.append(
        Table("Pixel accuracy of each image", ["image", "clean", "attacked"], [list(r) for r in rows])
    )
    columns = ["under", "images", "mIoU, %", "pixel accuracy, %", "low", "high"]
    record.tables.append(Table(SEGMENTED, columns, summary, SEGMENTED_NOTE))
    record.protocol |= {"attack": job.attack, "threat": asdict(job.threat.budget), "settings": job.settings}


def _write_images(done: Shards, out: Path, record: Record) -> None:
    """Every adversarial image as a PNG under its own name, and the first few beside their originals."""
    job = done.job
    pairs: list[Pair] = []
    alike = Counter(Path(name).with_suffix(".png") for name in job.images.names)
    for some, shard in zip(job.batches(), done, strict=True):
        for place, adv in enumerate(shard.adv.permute(0, 2, 3, 1).numpy()):
            name = Path(some.names[place]).with_suffix(".png")
            if alike[name] > 1:  # a.jpg and a.png may lie side by side
                name = Path(f"{some.names[place]}.png")
            save_png(Image.fromarray(adv), out / "images" / name)
            if len(pairs) < SHOWN:
                pairs.append(Pair(pixels(some[place][0]), adv, *_captions(job, record, len(pairs))))
    save_png(attack_sheet(pairs, title=f"{job.attack} within {job.threat}"), out / "sheet.png")


def _captions(job: AttackJob, record: Record, place: int) -> tuple[str, str, bool]:
    """What the image shows, what the model makes of it after the attack, and whether that is correct."""
    if not record.trials:
        _, clean, attacked = record.tables[0].rows[place]
        return f"{clean:.0%} of pixels correct", f"{attacked:.0%} of pixels correct", attacked > clean / 2
    trial = record.trials[-1]
    shown, seen = (_class_name(job.images, n) for n in (job.images.labels[place], trial.predicted[place]))
    return shown, seen, trial.correct[place]


def _class_name(images: ImageDataset, number: int) -> str:
    return images.classes[number] if images.classes else f"class {number}"
