"""Every dataset there is, by name.

To add a dataset, add a function here: it takes what stands after the colon and the split, returns a
`Listing`, and its keyword arguments are the options that may follow a question mark. The command line
and the documentation read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import torch
from safetensors.torch import load_file

from robvit.data import cifar, folders, forms, hub, imagenet, shapes
from robvit.data.dataset import Listing
from robvit.data.decode import SUFFIXES, MaskValues
from robvit.errors import IGNORE, DataError, InputError
from robvit.files import given_path, read_text
from robvit.registry import Registry
from robvit.specs import check_split


@dataclass(frozen=True)
class DatasetInfo:
    """What a dataset is, in words for people, a spec that opens it, and what is fixed of it.

    splits, classes: their names, where the dataset decides them and not what lies in a folder
    masks: whether images come with masks; None where that depends on an option
    """

    about: str
    example: str
    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    masks: bool | None = False


DATASETS: Registry[Callable[..., Listing], DatasetInfo] = Registry("dataset", DatasetInfo, ("place", "split"))

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


@DATASETS.add(
    about="2,000 CIFAR-10 images in the package, half for training, half for testing",
    example="sample",
    splits=cifar.SPLITS,
    classes=tuple(cifar.CIFAR10_CLASSES),
)
def sample(place: str, split: str | None) -> Listing:
    """The bundled images; both splits are balanced, and the test split is from CIFAR-10's."""
    _refuse_place("sample", place)
    split = _known_split("sample", split)
    with resources.as_file(resources.files("robvit.data").joinpath("sample.safetensors")) as path:
        tensors = load_file(path)
    rows, images, labels = (tensors[f"{split}_{key}"] for key in ("rows", "images", "labels"))
    return _array_listing(split, rows.tolist(), images, labels, cifar.CIFAR10_CLASSES)


@DATASETS.add(
    "shapes",
    about="2,500 drawn scenes with exact masks of 8 forms, at any size",
    example="shapes",
    splits=cifar.SPLITS,
    classes=tuple(shapes.CLASSES),
    masks=True,
)
def drawn_shapes(place: str, split: str | None) -> Listing:
    """Scenes made on the fly, 2,000 for training and 500 for testing, the same on every machine."""
    _refuse_place("shapes", place)
    split = _known_split("shapes", split)
    images = shapes.Scenes(split)
    names = [f"{split}/{i:05d}" for i in range(len(images))]
    values = MaskValues(len(shapes.CLASSES))
    return Listing(names, images, mask_values=values, classes=shapes.CLASSES)


@DATASETS.add(
    "forms",
    about="900 drawings of one form each, labelled, 8 classes",
    example="forms",
    splits=cifar.SPLITS,
    classes=tuple(forms.KINDS["forms"]),
)
def drawn_forms(place: str, split: str | None) -> Listing:
    """600 for training and 300 for testing, 64x64; the classes of `shapes`."""
    return _drawn("forms", place, split)


@DATASETS.add(
    "petals",
    about="900 drawn flowers, labelled by their number of petals",
    example="petals",
    splits=cifar.SPLITS,
    classes=tuple(forms.KINDS["petals"]),
)
def drawn_petals(place: str, split: str | None) -> Listing:
    """As forms, with six classes that differ little."""
    return _drawn("petals", place, split)


@DATASETS.add(
    about="60,000 images, 10 classes; get them with: robvit data cifar10",
    example="cifar10",
    splits=cifar.SPLITS,
    classes=tuple(cifar.CIFAR10_CLASSES),
)
def cifar10(place: str, split: str | None) -> Listing:
    return _cifar("cifar10", place, split)


@DATASETS.add(
    about="60,000 images, 100 classes; get them with: robvit data cifar100",
    example="cifar100",
    splits=cifar.SPLITS,
)
def cifar100(place: str, split: str | None) -> Listing:
    return _cifar("cifar100", place, split)


@DATASETS.add(
    about="any images, in one folder a class or without classes; a bare path will do; folder:PATH?test=0.25 "
    "divides it",
    example="folder:PATH",
)
def folder(place: str, split: str | None, *, test: str = "") -> Listing:
    """Class folders, or images without labels; files called by WordNet ids are labelled as ImageNet."""
    path = given_path(place)
    if test:
        return folders.held_out(folder(place, None), test, split)
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        folders.check_path(path)
        return Listing([path.name], [path])
    root = folders.split_folder(folders.existing_folder(place), split)
    if not folders.is_flat(root):
        return folders.class_folders(root)
    listing = folders.plain_folder(root)
    return imagenet.imagenet_folder(root) if imagenet.has_imagenet_names(listing.names) else listing


@DATASETS.add("imagenet", about="ImageNet validation, folders called by WordNet ids", example="imagenet:PATH")
def imagenet_validation(place: str, split: str | None) -> Listing:
    return imagenet.imagenet_folder(folders.split_folder(folders.existing_folder(place), split))


@DATASETS.add(
    "imagenet-100",
    about="100 classes of any ImageNet folder, drawn by a seed",
    example="imagenet-100:PATH?seed=0",
)
def imagenet_hundred(place: str, split: str | None, *, seed: str = "0", classes: str = "100") -> Listing:
    """A random subset of the classes, numbered anew from 0, the same for every split."""
    for name, text in (("seed", seed), ("classes", classes)):
        if not text.isdecimal():
            raise InputError(f"{name} must be a whole number, got {text!r}")
    root = folders.existing_folder(place)
    return imagenet.class_subset(folders.split_folder(root, split), int(classes), int(seed))


@DATASETS.add("imagenet-a", about="ImageNet-A, 200 of the 1,000 classes", example="imagenet-a:PATH")
def imagenet_a(place: str, split: str | None) -> Listing:
    root = folders.split_folder(folders.existing_folder(place), split)
    return imagenet.imagenet_folder(root, imagenet.variant_labels("a"))


@DATASETS.add("imagenet-r", about="ImageNet-R, 200 of the 1,000 classes", example="imagenet-r:PATH")
def imagenet_r(place: str, split: str | None) -> Listing:
    root = folders.split_folder(folders.existing_folder(place), split)
    return imagenet.imagenet_folder(root, imagenet.variant_labels("r"))


@DATASETS.add(
    "imagenet-c",
    about="ImageNet-C; the split is CORRUPTION/SEVERITY, as gaussian_noise/3",
    example="imagenet-c:PATH",
)
def imagenet_c(place: str, split: str | None) -> Listing:
    """One corruption at one severity, or all below the folder the split names."""
    return imagenet.imagenet_folder(folders.split_folder(folders.existing_folder(place), split))


@DATASETS.add(about="ADE20K: images/validation, annotations/validation", example="ade20k:PATH", masks=True)
def ade20k(place: str, split: str | None) -> Listing:
    """150 classes stored as 1..150; 0 is void."""
    root = folders.existing_folder(place)
    found = folders.masked_images(root, split)
    table = root / "objectInfo150.txt"  # tab-separated, a heading first, the name last
    lines = read_text(table, "a table of classes").splitlines()[1:] if table.is_file() else []
    names = [line.split("\t")[-1].strip() for line in lines if line.strip()]
    return folders.mask_listing(found, MaskValues(ADE20K_CLASSES, first=1, void=0), names)


@DATASETS.add(
    about="CamVid with 11 classes: test/images, test/masks, void = 11", example="camvid:PATH", masks=True
)
def camvid(place: str, split: str | None) -> Listing:
    found = folders.masked_images(folders.existing_folder(place), split)
    return folders.mask_listing(found, MaskValues(len(CAMVID_CLASSES), void=11), CAMVID_CLASSES)


@DATASETS.add(
    about="Oxford-IIIT Pet, images/BREED and masks/BREED; three quarters of each breed are for training",
    example="pets:PATH?target=breeds",
    splits=cifar.SPLITS,
    masks=None,
)
def pets(place: str, split: str | None, *, target: str = "masks") -> Listing:
    """Pets before a background, 1 and 2 in the masks, the border between void; or labelled by breed."""
    return folders.pets(folders.existing_folder(place), _known_split("pets", split), target)


@DATASETS.add(about="any images with masks: images/ and masks/", example="masks:PATH?void=11", masks=True)
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


@DATASETS.add(about="a Hugging Face dataset (pip install 'robvit[data]')", example="hf:NAME?label=COLUMN")
def hf(
    place: str,
    split: str | None,
    *,
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
    revision: str | None = None,
) -> Listing:
    """hf:NAME or hf:NAME:SPLIT; `image` and `label` name the columns where they cannot be guessed.

    `revision` is a commit; without one, the first that this machine got is meant from then on.
    """
    name, _, inner = place.partition(":")
    if not name:
        raise DataError("expected a name after hf:, as in hf:uoft-cs/cifar10")
    chosen = split or inner or None
    return hub.hub_listing(name, chosen, config=config, image=image, label=label, revision=revision)


def _drawn(kind: str, place: str, split: str | None) -> Listing:
    _refuse_place(kind, place)
    split = _known_split(kind, split)
    images, labels = forms.drawn(kind, split)
    return _array_listing(split, range(len(labels)), images, torch.tensor(labels), list(forms.KINDS[kind]))


def _cifar(name: str, place: str, split: str | None) -> Listing:
    split = _known_split(name, split)
    tensors, classes = cifar.load(name, split, cifar.home(name, place))
    return _array_listing(split, range(len(tensors["labels"])), tensors["images"], tensors["labels"], classes)


def _array_listing(
    split: str, rows: Sequence[int], images: torch.Tensor, labels: torch.Tensor, classes: list[str]
) -> Listing:
    """Images in memory, named by the split and the row they have in the full dataset."""
    return Listing([f"{split}/{row:05d}" for row in rows], images, labels=labels.tolist(), classes=classes)


def _known_split(name: str, split: str | None) -> str:
    split = split or "test"
    check_split(name, split, DATASETS.info(name).splits)
    return split


def _refuse_place(name: str, place: str) -> None:
    if place:
        raise DataError(
            f"{name} is part of robvit and takes nothing after a colon, got {place!r}; write {name}"
        )
