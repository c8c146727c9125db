"""Whether what a record claims holds: its kept images are measured and judged again on the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.attacks import frozen
from robvit.data import ImageDataset
from robvit.data.opening import recorded_images
from robvit.errors import InputError, RobvitError
from robvit.evaluation.classifiers import Classifier, aligned, fitted
from robvit.evaluation.shards import folder_sha256, shard_files
from robvit.evaluation.verify_rules import Verification, check_protocol, left_out_flaw
from robvit.files import given_path
from robvit.progress import Advance, silent
from robvit.record import Record, Trial
from robvit.record_checks import check_outcomes
from robvit.tensor_files import read_tensors
from robvit.threat import Threat

BESIDE = ("metrics", "tables", "curves", "findings", "claims", "notes")  # what no kept image shows


def verify(
    path: str | Path,
    classifier: Classifier | None = None,
    *,
    data: str | None = None,
    batch: int = 32,
    progress: Advance = silent,
) -> Verification:
    """Check every claim of a record that can be checked from what lies beside it.

    path: a record.json, or the folder that holds it.
    classifier: the judged model; without it nothing is judged again, only files and numbers are checked.
    data: where the images are now, if not where the record says.
    batch: images in one pass.
    progress: takes shares of the work, one in all.
    """
    place = Path(path) / "record.json" if Path(path).is_dir() else Path(path)
    record, found = Record.load(place), Verification()
    rules = check_protocol(record, found)
    if classifier is not None:
        _check_model(record, classifier, found)
    images = _images(record, data, classifier, found)
    _check_outcomes(record, images, place, found)
    if beside := [name for name in BESIDE if getattr(record, name)]:
        found.unchecked.append(f"{', '.join(beside)}: no kept image shows them")
    for number, trial in enumerate(record.trials):
        label = f"trial {number} ({' '.join(filter(None, (trial.name, trial.strength, trial.scenario)))})"
        if trial.not_attacked:
            why_not = left_out_flaw(trial, record.trials[:number], rules)
            found.note(f"{label}: images that were not attacked", why_not)
        _check_trial(place.parent, trial, label, classifier, images, batch, found)
        progress(1 / len(record.trials), note=label)
    return found


def _check_outcomes(record: Record, images: ImageDataset | None, place: Path, found: Verification) -> None:
    """What counts as correct agrees with predictions and labels: the images' own, if they are here.

    A record that contradicts its own labels is not even loaded; one that names none, or others, is found out.
    """
    labels = record.data.get("labels") if images is None else images.labels
    try:
        check_outcomes(record, place, labels)
        found.note("outcomes agree with predictions and labels")
    except InputError as error:
        found.note("outcomes agree with predictions and labels", str(error).removeprefix(f"{place}: "))


def _check_model(record: Record, classifier: Classifier, found: Verification) -> None:
    claimed, is_ = record.model.get("identity"), classifier.identity
    other = "" if claimed == is_ else f"the record names {claimed}, this one is {is_}"
    found.note(f"{classifier.name} is the judged model", other)
    if named_file := record.model.get("file_sha256"):
        other = "" if named_file == classifier.file_sha256 else "it is another file than the record names"
        found.note("the model's file", other)


def _images(
    record: Record, data: str | None, classifier: Classifier | None, found: Verification
) -> ImageDataset | None:
    """The very images that the record names, at the size it judged them."""
    held = record.data
    try:
        images = recorded_images(held, data)
        if held.get("size") is None and classifier is not None and classifier.size:
            images = images.resized(classifier.size, images.resize)
        if classifier is not None:  # whose classes have an order of their own, whatever the record says
            images = aligned(classifier, images)
        else:
            images = _in_order_of(held.get("classes"), images)
    except RobvitError as error:
        found.unchecked.append(f"distances and clean answers: {error}; say where the images are with --data")
        return None
    wrong = "" if images.digest() == held.get("digest") else "names and labels are others"
    if held.get("pixels") and not wrong and images.pixels() != held["pixels"]:
        wrong = "their pixels are others"
    if classifier is not None and images.size != (classifier.size or images.size):
        wrong = f"they have {images.size} pixels a side, {classifier.name} takes {classifier.size}"
    found.note("the images are those of the record", wrong)
    return None if wrong else images


def _in_order_of(known: Any, images: ImageDataset) -> ImageDataset:
    """The images with their labels in the order of these classes, if they have all that are needed."""
    own = images.classes
    if not own or known == own or not isinstance(known, list) or not all(isinstance(n, str) for n in known):
        return images
    if not {own[label] for label in images.labels} <= set(known):
        return images
    return images.in_order_of(known)


def _check_trial(
    root: Path,
    trial: Trial,
    label: str,
    classifier: Classifier | None,
    images: ImageDataset | None,
    batch: int,
    found: Verification,
) -> None:
    if trial.kind == "clean" and not trial.control and classifier is not None and images is not None:
        net = fitted(classifier.net, images)
        seen = [row for part in images.batches(batch) for row in _predictions(net, part[0])]
        found.note(f"{label}: predictions", _difference(seen, trial.predicted))
        return
    alive = [i for i in range(len(trial.correct)) if i not in trial.not_attacked]
    if not trial.shards:
        if trial.kind == "attack" and not trial.control and alive:
            found.note(f"{label}: kept images", "there are none, so nothing shows what it claims")
        else:
            found.unchecked.append(f"{label}: no images were kept")
        return
    if trial.threat is None:
        found.note(f"{label}: kept images", "they have no budget that they could keep")
        return
    folder = given_path(root / trial.shards)
    if not folder.resolve().is_relative_to(root.resolve()) or not folder.is_dir():
        found.note(f"{label}: kept images", f"there is no folder {trial.shards} beside the record")
        return
    if trial.shards_sha256:
        same = folder_sha256(folder) == trial.shards_sha256
        found.note(f"{label}: files", "" if same else "they are not the files that the record names")
    else:
        found.unchecked.append(f"{label}: the record does not carry the hash of its files")
    try:
        parts = [_adversarial(path) for path in shard_files(folder)]
    except InputError as error:
        found.note(f"{label}: kept images", str(error))
        return
    if sum(map(len, parts)) != len(alive):
        found.note(f"{label}: counts", f"{sum(map(len, parts))} images for {len(alive)} outcomes")
        return
    found.note(f"{label}: counts")
    if images is not None:
        found.note(f"{label}: budget", _budget_flaw(trial, images.take(alive), parts, alive))
    if classifier is not None:
        net = fitted(classifier.net, images) if images is not None else classifier.net
        seen = [row for part in parts for row in _predictions(net, part.float() / 255)]
        wrong = _difference(seen, [trial.predicted[i] for i in alive])
        found.note(f"{label}: success of every image", wrong)


def _adversarial(path: Path) -> torch.Tensor:
    """The images of a shard, uint8 (B 3 H W)."""
    adv = read_tensors(path, "a shard")[0].get("adv")
    if adv is None or adv.dtype != torch.uint8 or adv.ndim != 4 or adv.shape[1] != 3:
        raise InputError(f"{path.name} holds no images as bytes (B 3 H W)")
    return adv


@torch.no_grad()
def _predictions(net: nn.Module, x: torch.Tensor) -> list[int]:
    device = next(iter(net.parameters()), torch.zeros(0)).device
    with frozen(net):
        found: list[int] = net(x.to(device)).argmax(1).tolist()
    return found


def _difference(seen: list[int], claimed: list[int]) -> str:
    """In how many predictions two lists differ, in words, or nothing."""
    wrong = [i for i, (a, b) in enumerate(zip(seen, claimed, strict=True)) if a != b]
    if not wrong:
        return ""
    first = wrong[0]
    claim = f"{claimed[first]} is claimed, the model says {seen[first]}"
    return f"{len(wrong)} of {len(claimed)} differ, the first at image {first}: {claim}"


def _budget_flaw(trial: Trial, images: ImageDataset, parts: list[torch.Tensor], alive: list[int]) -> str:
    """Why distances are not what is claimed, or nothing."""
    assert trial.threat is not None
    threat = Threat(trial.threat.norm, trial.threat.eps, trial.threat.psnr)
    start = 0
    for part in parts:
        x = torch.stack([images[start + i][0] for i in range(len(part))])
        if x.shape != part.shape:
            return f"kept images are {tuple(part.shape[1:])}, the originals {tuple(x.shape[1:])}"
        # Divided in the originals' type: a pixel that nobody changed differs by nothing, which patches go by.
        delta = (part.to(x.dtype) / 255).double() - x.double()
        slack = threat.tolerance(x)
        for place, size in enumerate(threat.size(delta).tolist()):
            claimed = trial.distance[alive[start + place]]
            if size > threat.eps + slack:
                return f"image {alive[start + place]} is {size:.8g} away, the budget is {threat}"
            if not abs(size - claimed) <= slack + 1e-5 * max(size, claimed):  # NaN is no distance either
                return f"image {alive[start + place]} is {size:.8g} away, {claimed:.8g} is claimed"
        if bool((delta.flatten(1).norm(dim=1) > threat.radius(x) * (1 + 1e-6) + slack).any()):
            return f"an image does not keep a PSNR of {threat.psnr} dB"
        start += len(part)
    return ""
