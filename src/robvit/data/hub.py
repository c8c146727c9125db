"""Hugging Face datasets, through the `datasets` package where it is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from robvit import revisions
from robvit.data.dataset import Listing
from robvit.data.folders import EVALUATION_SPLITS
from robvit.decoding import ImageError
from robvit.errors import DataError
from robvit.fetch import tell
from robvit.specs import SPLITS

HUB_SECONDS = 10.0  # how long the hub may take to say at which commit a dataset is
_LABEL_COLUMNS = ("label", "labels")


class HubImages:
    """The undecoded images of a column, so that our own decoder decides what is an image."""

    def __init__(self, table: Any, column: str) -> None:
        self.table, self.column = table, column

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int, /) -> bytes | Path:
        cell = self.table[index][self.column]
        if cell and cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if cell and cell.get("path"):
            return Path(cell["path"])
        raise ImageError("the dataset has no image in this row")


def hub_listing(
    name: str,
    split: str | None,
    *,
    config: str | None,
    image: str | None,
    label: str | None,
    revision: str | None = None,
) -> Listing:
    """A split of a dataset on the hub at one commit; names are the split and the row."""
    datasets = _datasets()
    commit = revisions.check_commit(revision, f"hf:{name}?revision={revision}") if revision else _commit(name)
    try:
        split = _split(name, split, datasets.get_dataset_split_names(name, config, revision=commit))
        table = datasets.load_dataset(name, config, split=split, revision=commit)
    except DataError:
        raise
    except Exception as error:  # the package's errors share no base class
        raise DataError(f"Hugging Face dataset {name!r} cannot be loaded: {error}") from error
    found = table_listing(table, split, datasets.Image(decode=False), image=image, label=label)
    return replace(found, revision=commit or "")


def _commit(name: str) -> str | None:
    """The commit that this machine means by a dataset's name; asked of the hub once, then kept."""
    repository = f"datasets/{name}"
    if known := revisions.settled(repository):
        return known
    from huggingface_hub import HfApi

    try:
        commit = str(HfApi().dataset_info(name, timeout=HUB_SECONDS).sha)
    except Exception as error:  # the client's errors have another base in every version
        tell(
            f"{name}: the hub did not say its revision ({error}), so it is not known; name one as ?revision="
        )
        return None
    revisions.settle(repository, commit, f"hf:{name}?revision={commit}")
    return commit


def table_listing(table: Any, split: str, undecoded: Any, *, image: str | None, label: str | None) -> Listing:
    """The images and labels of a loaded table; `undecoded` is the feature that keeps images as bytes."""
    features = dict(table.features)
    image = _column(features, image, [n for n, f in features.items() if type(f).__name__ == "Image"], "image")
    if image is None:
        raise DataError(f"expected a column of images, got {', '.join(features)}; name it with ?image=COLUMN")
    labels, classes = _labels(table, features, label)
    names = [f"{split}/{row:08d}" for row in range(len(table))]
    if not names:
        raise DataError(f"split {split!r} is empty")
    images = HubImages(table.cast_column(image, undecoded), image)
    return Listing(names, images, labels=labels, classes=classes)


def _labels(table: Any, features: dict[str, Any], label: str | None) -> tuple[list[int] | None, list[str]]:
    """Whole numbers and class names, or nothing where the table has no labels."""
    candidates = [n for n, f in features.items() if type(f).__name__ == "ClassLabel"]
    column = _column(features, label, candidates or [n for n in _LABEL_COLUMNS if n in features], "label")
    if column is None:
        return None, []
    values = list(table[column])
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise DataError(
            f"expected whole numbers in column {column!r}, one class an image, got {values[:3]}; "
            "name another with ?label=COLUMN"
        )
    named = list(getattr(features[column], "names", None) or [])
    return values, named or [str(i) for i in range(max(values, default=-1) + 1)]


def _column(features: dict[str, Any], wanted: str | None, candidates: list[str], option: str) -> str | None:
    """The column asked for, else the only candidate or the usually named one."""
    if wanted is not None:
        if wanted not in features:
            raise DataError(f"no column is called {wanted!r}; there are {', '.join(features)}")
        return wanted
    usual = [name for name in candidates if name in (option, f"{option}s")]
    if len(candidates) > 1 and len(usual) != 1:
        raise DataError(
            f"several columns could be the {option}: {', '.join(candidates)}; say ?{option}=COLUMN"
        )
    return next(iter(usual or candidates), None)


def _split(name: str, wanted: str | None, known: list[str]) -> str:
    """The split asked for, under any of its usual names; without one, test or validation."""
    groups = [wanted] if wanted else list(EVALUATION_SPLITS)
    for group in groups:
        alike = next((names for names in SPLITS.values() if group in names), (group,))
        for candidate in (group, *alike):
            if candidate in known:
                return candidate
    raise DataError(f"{name} has no {wanted or 'test'} split; choose one with split=: {', '.join(known)}")


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(
            "Hugging Face datasets need the `datasets` package; install it with: pip install 'robvit[data]'"
        ) from None
    return datasets
