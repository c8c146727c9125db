"""Every data set there is, by name, and the one door that opens them.

To add a data set, add a function here: it takes what stands after the colon and the split, returns a
`Listing`, and its keyword arguments are the options that may follow a question mark. The command line
and the documentation read this table.

    sample                          a registered name
    imagenet-a:/data/imagenet-a     a name and a place
    masks:/data/streets?void=11     with an option
    /data/pets                      any folder of images, or a single image
    sample?corruption=fog:3         any named set under a corruption, of severity 1 to 5
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch
from safetensors.torch import load_file

from robvit.data import cifar, folders, forms, hub, imagenet, shapes
from robvit.data.dataset import ImageDataset, Listing, select
from robvit.data.decode import SUFFIXES, MaskValues
from robvit.errors import IGNORE, DataError, InputError
from robvit.files import read_text
from robvit.registry import Registry, unknown


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set is, in words for people, and a spec that opens it."""

    about: str
    example: str


DATASETS: Registry[Callable[..., Listing], DatasetInfo] = Registry("data set", DatasetInfo)

CORRUPTION = "corruption"  # the option that every set has
ADE20K_CLASSES = 150
CAMVID_CLASSES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]


def open_data(
    spec: str | Path,
    *,
    split: str | None = None,
    size: int | None = None,
    resize: str = "squash",
    limit: int | None = None,
    subset: str | Path | Sequence[str] | None = None,
    seed: int = 0,
    check: bool = True,
    corruption: str = "",
) -> ImageDataset:
    """Open a data set: a name from `DATASETS`, a name with a place (imagenet:PATH), or a folder.

    Without a `split` the judging part is opened, never the training part. `limit` draws that many
    images by the `seed`, class-balanced where possible; a smaller limit is the beginning of a larger
    one. `subset` is "robustbench-5000", a file with one name a line, or the names. `size` and `resize`
    are those of `ImageDataset.sized`. `check=False` saves decoding everything once; a broken image is
    then an error when it is read. `corruption` is that of `ImageDataset.corrupted`.
    """
    opener, place, options = _resolve(spec)
    corruption = options.pop(CORRUPTION, corruption)
    listing = opener(place, split, **options)
    if not listing.names:
        raise DataError(f"{spec} holds no images")
    chosen = select(listing, names=_subset_names(subset), limit=limit, seed=seed, check=check)
    chosen = replace(chosen, spec=str(spec), split=split or "")
    return chosen.sized(size, resize).corrupted(corruption)


@DATASETS.add(about="2,000 CIFAR-10 images in the package, half to train, half to judge on", example="sample")
def sample(place: str, split: str | None) -> Listing:
    """The bundled images; both parts are balanced, and the judging part is from CIFAR-10's test set."""
    _refuse_place("sample", place)
    part = _known_part("sample", split)
    with resources.as_file(resources.files("robvit.data").joinpath("sample.safetensors")) as path:
        tensors = load_file(path)
    rows, images, labels = (tensors[f"{part}_{key}"] for key in ("rows", "images", "labels"))
    return _array_listing(part, rows.tolist(), images, labels, cifar.CIFAR10_CLASSES)


@DATASETS.add("shapes", about="2,500 drawn scenes with exact masks of 8 forms, at any size", example="shapes")
def drawn_shapes(place: str, split: str | None) -> Listing:
    """Scenes made on the fly, 2,000 to train on and 500 to judge on, the same on every machine."""
    _refuse_place("shapes", place)
    part = _known_part("shapes", split)
    images = shapes.Drawings(part)
    names = [f"{part}/{i:05d}" for i in range(len(images))]
    values = MaskValues(len(shapes.CLASSES))
    return Listing(names, images, mask_values=values, classes=shapes.CLASSES)


@DATASETS.add("forms", about="900 drawings of one form each, labelled, 8 classes", example="forms")
def drawn_forms(place: str, split: str | None) -> Listing:
    """600 to train on and 300 to judge on, 64x64; the classes of `shapes`."""
    return _drawn("forms", place, split)


@DATASETS.add("petals", about="900 drawn flowers, labelled by their number of petals", example="petals")
def drawn_petals(place: str, split: str | None) -> Listing:
    """As forms, with six classes that differ little."""
    return _drawn("petals", place, split)


@DATASETS.add(about="60,000 images, 10 classes; get them with: robvit data cifar10", example="cifar10")
def cifar10(place: str, split: str | None) -> Listing:
    return _cifar("cifar10", place, split)


@DATASETS.add(about="60,000 images, 100 classes; get them with: robvit data cifar100", example="cifar100")
def cifar100(place: str, split: str | None) -> Listing:
    return _cifar("cifar100", place, split)


@DATASETS.add(
    about="any images, in one folder a class or without classes; a bare path will do", example="folder:PATH"
)
def folder(place: str, split: str | None) -> Listing:
    """Class folders, or images without labels; files called by WordNet ids are labelled as ImageNet."""
    path = Path(place).expanduser()
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return Listing([path.name], [path])
    root = folders.part_folder(folders.existing_folder(place), split)
    if not folders.is_flat(root):
        return folders.class_folders(root)
    listing = folders.plain_folder(root)
    return imagenet.imagenet_folder(root) if imagenet.has_imagenet_names(listing.names) else listing


@DATASETS.add("imagenet", about="ImageNet validation, folders called by WordNet ids", example="imagenet:PATH")
def imagenet_validation(place: str, split: str | None) -> Listing:
    return imagenet.imagenet_folder(folders.part_folder(folders.existing_folder(place), split))


@DATASETS.add("imagenet-a", about="ImageNet-A, 200 of the 1,000 classes", example="imagenet-a:PATH")
def imagenet_a(place: str, split: str | None) -> Listing:
    root = folders.part_folder(folders.existing_folder(place), split)
    return imagenet.imagenet_folder(root, imagenet.variant_labels("a"))


@DATASETS.add("imagenet-r", about="ImageNet-R, 200 of the 1,000 classes", example="imagenet-r:PATH")
def imagenet_r(place: str, split: str | None) -> Listing:
    root = folders.part_folder(folders.existing_folder(place), split)
    return imagenet.imagenet_folder(root, imagenet.variant_labels("r"))


@DATASETS.add(
    "imagenet-c",
    about="ImageNet-C; the split is CORRUPTION/SEVERITY, as gaussian_noise/3",
    example="imagenet-c:PATH",
)
def imagenet_c(place: str, split: str | None) -> Listing:
    """One corruption at one severity, or all below the folder the split names."""
    return imagenet.imagenet_folder(folders.part_folder(folders.existing_folder(place), split))


@DATASETS.add(about="ADE20K: images/validation, annotations/validation", example="ade20k:PATH")
def ade20k(place: str, split: str | None) -> Listing:
    """150 classes stored as 1..150; 0 is void."""
    root = folders.existing_folder(place)
    found = folders.masked_images(root, split)
    table = root / "objectInfo150.txt"  # tab-separated, a heading first, the name last
    lines = read_text(table, "a table of classes").splitlines()[1:] if table.is_file() else []
    names = [line.split("\t")[-1].strip() for line in lines if line.strip()]
    return folders.mask_listing(found, MaskValues(ADE20K_CLASSES, first=1, void=0), names)


@DATASETS.add(about="CamVid with 11 classes: test/images, test/masks, void = 11", example="camvid:PATH")
def camvid(place: str, split: str | None) -> Listing:
    found = folders.masked_images(folders.existing_folder(place), split)
    return folders.mask_listing(found, MaskValues(len(CAMVID_CLASSES), void=11), CAMVID_CLASSES)


@DATASETS.add(about="any images with masks: images/ and masks/", example="masks:PATH?void=11")
def masks(place: str, split: str | None, *, void: str = str(IGNORE)) -> Listing:
    """Classes stored as 0, 1, ...; `classes.txt` beside the folders names them, else they are counted."""
    if not void.isdecimal():
        raise InputError(f"void must be the mask value that is no class, a whole number, got {void!r}")
    root = folders.existing_folder(place)
    found = folders.masked_images(root, split)
    table = root / "classes.txt"
    names = read_text(table, "a list of classes").split("\n") if table.is_file() else []
    names = [name.strip() for name in names if name.strip()]
    count = len(names) or folders.count_mask_classes(found[2], int(void))
    return folders.mask_listing(found, MaskValues(count, void=int(void)), names)


@DATASETS.add(about="a Hugging Face data set (pip install 'robvit[data]')", example="hf:NAME?label=COLUMN")
def hf(
    place: str,
    split: str | None,
    *,
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
) -> Listing:
    """hf:NAME or hf:NAME:SPLIT; `image` and `label` name the columns where they cannot be guessed."""
    name, _, inner = place.partition(":")
    if not name:
        raise DataError("expected a name after hf:, as in hf:uoft-cs/cifar10")
    return hub.hub_listing(name, split or inner or None, config=config, image=image, label=label)


def _resolve(spec: str | Path) -> tuple[Callable[..., Listing], str, dict[str, str]]:
    """The opener a spec asks for, the place after its colon, and its options."""
    text = os.fspath(spec)
    head, _, query = text.partition("?")
    name, _, place = head.partition(":")
    if not isinstance(spec, Path) and name in DATASETS:
        options = dict(parse_qsl(query, keep_blank_values=True))
        _check_options(name, options)
        return DATASETS[name], place, options
    path = Path(text).expanduser()
    if path.exists() or isinstance(spec, Path) or os.sep in text or text.startswith((".", "~")):
        return DATASETS["folder"], text, {}
    raise unknown(DATASETS.kind, name, DATASETS.names, "Or give a folder of images.")


def _check_options(name: str, options: dict[str, Any]) -> None:
    parameters = inspect.signature(DATASETS[name]).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY] + [CORRUPTION]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)


def _subset_names(subset: str | Path | Sequence[str] | None) -> list[str] | None:
    if subset is None:
        return None
    if not isinstance(subset, str | Path):
        return list(subset)
    if str(subset) == imagenet.ROBUSTBENCH:
        return imagenet.robustbench_list()
    path = Path(subset).expanduser()
    if not path.is_file():
        raise DataError(f"expected {imagenet.ROBUSTBENCH} or a file with one image name a line, got {subset}")
    names = [line.strip() for line in read_text(path, "a list of names").splitlines() if line.strip()]
    if not names:
        raise DataError(f"{path} names no images")
    return names


def _drawn(kind: str, place: str, split: str | None) -> Listing:
    _refuse_place(kind, place)
    part = _known_part(kind, split)
    images, labels = forms.drawn(kind, part)
    return _array_listing(part, range(len(labels)), images, torch.tensor(labels), list(forms.KINDS[kind]))


def _cifar(name: str, place: str, split: str | None) -> Listing:
    part = _known_part(name, split)
    tensors, classes = cifar.load(name, part, cifar.home(name, place))
    return _array_listing(part, range(len(tensors["labels"])), tensors["images"], tensors["labels"], classes)


def _array_listing(
    part: str, rows: Sequence[int], images: torch.Tensor, labels: torch.Tensor, classes: list[str]
) -> Listing:
    """Images in memory, named by the part and the row they have in the full data set."""
    return Listing([f"{part}/{row:05d}" for row in rows], images, labels=labels.tolist(), classes=classes)


def _known_part(name: str, split: str | None) -> str:
    split = split or "test"
    if split not in cifar.SPLITS:
        raise DataError(f"{name} has the splits {' and '.join(cifar.SPLITS)}, got {split!r}")
    return split


def _refuse_place(name: str, place: str) -> None:
    if place:
        raise DataError(
            f"{name} is part of robvit and takes nothing after a colon, got {place!r}; write {name}"
        )
