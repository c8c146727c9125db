"""Judging a classifier by a protocol: every image's outcome under every attack, in one record.

Each attack is a folder of shards, so that a run that was killed resumes, several processes share the work
(`accelerate launch`), and only one batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from robvit.attacks import ATTACKS
from robvit.attacks.compute import settle
from robvit.attacks.cost import probed
from robvit.attacks.precision import check_precision
from robvit.backbones.trained_on import fitting
from robvit.errors import InputError, check_batch
from robvit.evaluation.claims import attacker_levels, claims
from robvit.evaluation.classifiers import (
    Classifier,
    Judged,
    aligned,
    check_fit,
    fitted,
    model_facts,
    open_classifier,
)
from robvit.evaluation.corruptions import is_imagenet_c, summarise
from robvit.evaluation.doubts import doubts
from robvit.evaluation.forecast import forecast, plan_of
from robvit.evaluation.pooling import Part
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.runner import Runner
from robvit.evaluation.subset import Data, judged_images, public_images
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, Log, silent, whole
from robvit.record import Record
from robvit.verdict import power_of

QUICK, QUICK_BLACK_BOX = "quick@1", "quick-black-box@1"


def evaluate(
    model: Judged,
    data: Data,
    *,
    protocol: str | Path | Protocol | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    part: tuple[int, int] = (1, 1),
    audit: int | None = None,
    public: Data | None = None,
    batch: int = 32,
    precision: str = "auto",
    compiler: str | None = None,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Judge a classifier on images by a protocol (`robvit evaluate --list`), or by one of your own.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: an image set, or what `open_data` opens.
    protocol: a name with its version, a YAML file, or a `Protocol`; quick@1 if left out, or
        quick-black-box@1 for a file of which only answers can be had.
    out: a folder for shards and record.json, from which an interrupted run resumes to the same record;
        without it nothing is left behind.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images, fewer than the protocol wants, which the record then says.
    part: (2, 5) judges the second fifth of these images and no others; `evaluation.pooling.pool` makes one
        record of all five, which may come from several machines.
    audit: so many survivors for the audited attacks in place of the protocol's number, or of a part's share
        of it; the record says so, with the bound that follows, weaker if they are fewer.
    public: the images of attackers who learn; the data's training part if left out. Those that the model's
        tokens were learned from are never among them.
    batch: images in one pass.
    precision: of the search, whose successes fp32 confirms: "fp32", "bf16", "fp16", or "auto", which probes
        what is fastest on this device and keeps to it in the folder `out`.
    compiler: compiles the attacked model first, "inductor", say; pays on a GPU.
    log: takes a forecast of the cost in words, before the work starts.
    progress: takes shares of the work, one in all, with a note each.
    command: what a person typed, for the record.
    """
    given = None if protocol is None else find(protocol)  # refused before the model is opened
    classifier = open_classifier(model)
    rules = given or quick_rules(classifier)
    published = is_imagenet_c(data)
    check_precision(precision, auto=True)
    check_batch(batch)
    _check(rules, classifier, published)
    share = Part(*part).checked(rules)
    run = rules.with_audit(share.audit(rules) if audit is None else audit)
    first = "gaussian_noise/1" if published else split  # any one names the images
    images = judged_images(data, rules.subset, split=first, limit=limit)
    fit = fitting(classifier.net, resize)
    chosen = aligned(classifier, images.resized(classifier.size or images.size, fit))
    images = share.of(chosen)
    classes = check_fit(classifier, images)
    taken: Set[str] = getattr(classifier.net, "learned_from", frozenset())
    learned = public_images(public, data, chosen, split=split, taken=taken)
    if rules.learns:
        learned(1)  # refused now rather than after an hour
    plan = plan_of(run, classifier.net, count=len(images), classes=classes)
    with kept_in(out) as folder, whole(progress) as advance:
        device = processes().device
        net = fitted(classifier.net, images).to(device)
        x = images.take(range(probed(min(batch, len(images)), device.type))).tensors()[0].to(device)
        work = plan.total.work if rules.attacks else 0  # without attacks nothing is searched for
        wanted = "fp32" if classifier.black_box else precision  # its own affair
        compute = settle(net, x, wanted=wanted, passes=work, keep=folder / "compute.json")
        runner = Runner(
            classifier,
            images,
            run,
            plan,
            folder,
            data,
            learned,
            batch=batch,
            precision=compute.precision,
            compiler=compiler,
            keeps=out is not None,
            progress=advance,
            log=log,
        )
        with compute.in_use():
            if log is not silent:
                log(f"{rules.name}: {rules.about}")
                log(f"pair by pair, {power_of(len(images))}")
                cost = forecast(plan, compute.searched(net), x)
                log(f"{classifier.name} on {len(images)} images: {cost}; {compute}")
            trials = runner.run()
        record = Record(
            kind="evaluate",
            model=model_facts(classifier),
            data=share.facts(chosen) | ({"split": split or ""} if published else {}),
            trials=trials,
            metrics=runner.metrics,
            audits=runner.audits,
            protocol=rules.model_dump(mode="json")
            | {"digest": rules.digest(), "batch": batch}
            | ({} if compiler is None else {"compiler": compiler})
            | compute.rules(),
            machine=compute.machine(),
            command=command,
        )
        record.tables += attacker_levels(record)
        record.notes += [*share.notes(chosen), *claims(record), *doubts(classifier, images), *compute.notes()]
        if rules.corruptions is not None:
            summarise(record, published)
        if out is not None and processes().is_main_process:
            record.save(folder / "record.json")
    return record


def quick_rules(classifier: Classifier) -> Protocol:
    """The protocol of a first look, which must do without gradients at a black box."""
    return find(QUICK_BLACK_BOX if classifier.black_box else QUICK)


def _check(rules: Protocol, classifier: Classifier, published: bool) -> None:
    """Refuse what the protocol cannot judge."""
    if rules.needs_tokens and not classifier.hardened:
        raise InputError(
            f"{rules.name} judges a model with tokens, {classifier.name} has none; give --tokens"
        )
    blind = [entry.attack for entry in rules.attacks if ATTACKS.info(entry.attack).gradients]
    if classifier.black_box and blind:
        raise InputError(
            f"{rules.name} attacks by gradients ({blind[0]}), {classifier.name} is a black box; "
            f"take {QUICK_BLACK_BOX}, linf-4-black-box@1 or rules of your own with square"
        )
    if published and rules.corruptions is None:
        raise InputError(
            f"{rules.name} has no corruptions, and these are corrupted images; take corruptions@1"
        )
