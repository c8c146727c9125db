"""Datasets: what is in them, in which order, under which labels, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from robvit.data import DATASETS, ImageDataset, ImageError, SkippedImages, imagenet, open_data
from robvit.errors import IGNORE, DataError, InputError, UnknownName
from robvit.files import sha256
from robvit.loading import load
from robvit.training.head import train_head


def paint(path: Path, shade: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
    """A small grey image whose shade tells which it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(path)
    return path


def paint_mask(path: Path, values: list[list[int]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(values, np.uint8)).save(path)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two cats, three dogs."""
    for i in range(2):
        paint(tmp_path / f"pets/cat/{i}.png", 10 + i)
    for i in range(3):
        paint(tmp_path / f"pets/dog/deep/{i}.png", 20 + i)
    return tmp_path / "pets"


class TestSample:
    def test_parts_are_balanced_and_disjoint(self) -> None:
        parts = [open_data("sample", split=split) for split in ("train", "test")]
        images = []
        for part in parts:
            assert len(part) == 1000
            assert Counter(part.labels) == dict.fromkeys(range(10), 100)
            stored = part.listing.images
            assert isinstance(stored, torch.Tensor)
            images += [x.tobytes() for x in stored.numpy()]
        assert len(set(images)) == 2000
        assert not set(parts[0].names) & set(parts[1].names)

    def test_judging_part_by_default_and_pixels_in_the_unit_interval(self) -> None:
        part = open_data("sample", limit=20)
        assert part.digest() == open_data("sample", split="test", limit=20).digest()
        x, y = part.tensors()
        assert x.shape == (20, 3, 32, 32)
        assert 0 <= x.min() < 0.1
        assert 0.9 < x.max() <= 1
        assert y.dtype == torch.int64
        assert part.classes[3] == "cat"

    def test_enlarged_on_the_fly(self) -> None:
        small, large = open_data("sample", limit=4), open_data("sample", limit=4, size=56)
        assert large.tensors()[0].shape == (4, 3, 56, 56)
        assert large.tensors()[0].mean() == pytest.approx(float(small.tensors()[0].mean()), abs=0.01)
        assert torch.equal(small.resized(56).tensors()[0], large.tensors()[0])

    def test_is_small(self) -> None:
        path = Path(sys.modules["robvit.data"].__file__ or "").parent / "sample.safetensors"
        assert path.stat().st_size < 6.5e6

    def test_refuses_other_parts_and_places(self) -> None:
        with pytest.raises(DataError, match="train and test, got 'val'"):
            open_data("sample", split="val")
        with pytest.raises(DataError, match="takes nothing after a colon"):
            open_data("sample:here")


class TestFolders:
    def test_class_folders(self, pets: Path) -> None:
        found = open_data(pets)
        assert found.kind == "labels"
        assert found.classes == ["cat", "dog"]
        assert found.names == ["cat/0.png", "cat/1.png", "dog/deep/0.png", "dog/deep/1.png", "dog/deep/2.png"]
        assert found.labels == [0, 0, 1, 1, 1]
        x, y = found[3]
        assert x.shape == (3, 6, 8)
        assert torch.allclose(x, torch.tensor(21 / 255))
        assert y == 1
        assert found.shape(3) == (6, 8)
        assert open_data(f"folder:{pets}").digest() == found.digest()

    def test_no_classes(self, tmp_path: Path) -> None:
        for i in range(3):
            paint(tmp_path / f"{i}.jpg")
        (tmp_path / "notes.txt").write_text("not an image, and not counted as one")
        (tmp_path / "._0.jpg").write_bytes(b"hidden")
        found = open_data(str(tmp_path))
        assert found.kind == "none"
        assert found.tensors()[1].tolist() == [-1, -1, -1]

    def test_one_image(self, tmp_path: Path) -> None:
        assert open_data(paint(tmp_path / "cat.png")).names == ["cat.png"]

    def test_parts(self, pets: Path) -> None:
        root = pets.parent / "split"
        for part in ("train", "validation"):
            paint(root / part / "cat/0.png")
        assert open_data(root).classes == ["cat"]
        assert open_data(root, split="val").names == open_data(root, split="validation").names
        assert open_data(root, split="train").listing.images[0].parts[-3] == "train"
        with pytest.raises(DataError, match=re.escape("no split called 'tset'; it holds train, validation")):
            open_data(root, split="tset")
        with pytest.raises(DataError, match="no split"):
            open_data(root, split="../pets")
        (root / "validation").rename(pets.parent / "gone")
        with pytest.raises(DataError, match="only a training split"):
            open_data(root)

    def test_a_class_may_be_called_train(self, tmp_path: Path) -> None:
        for name in ("bus", "train"):
            paint(tmp_path / name / "0.png")
        assert open_data(tmp_path).classes == ["bus", "train"]

    def test_links_are_followed_once(self, pets: Path) -> None:
        (pets / "cat/again").symlink_to(pets / "cat")
        (pets / "fox").symlink_to(pets / "dog")
        assert Counter(open_data(pets).labels) == {0: 2, 1: 3, 2: 3}

    def test_empty_missing_and_mixed_folders_are_errors(self, tmp_path: Path, pets: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="holds no images"):
            open_data(tmp_path / "empty")
        with pytest.raises(DataError, match="does not exist"):
            open_data(tmp_path / "nowhere")
        with pytest.raises(DataError, match="does not exist"):
            open_data("./nowhere")
        (pets / "fox").mkdir()
        with pytest.raises(DataError, match=r"class folder .*fox holds no images"):
            open_data(pets)
        paint(pets / "loose.png")
        with pytest.raises(DataError, match=r"both images and folders .*cat, dog"):
            open_data(pets)

    def test_a_folder_too_small_to_divide_says_how_many_images_it_has(self, tmp_path: Path) -> None:
        paint(tmp_path / "cat/0.png")
        assert len(open_data(tmp_path, split="held-out")) == 1
        with pytest.raises(DataError, match=r"the folder has 1 image, which leaves none for 'learn'; add"):
            open_data(tmp_path, split="learn")
        with pytest.raises(DataError, match="the folder has 1 image"):
            train_head(load("robvit-mini"), tmp_path)

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no file can be called so")
    @pytest.mark.parametrize("name", [b"cat/caf\xe9.png", b"caf\xe9/0.png"])
    def test_names_that_are_no_text_are_refused(self, pets: Path, name: bytes) -> None:
        place = os.fsencode(pets) + b"/" + name
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120  a Path takes no bytes
        shutil.copy(os.fsencode(pets / "cat/0.png"), place)
        with pytest.raises(DataError, match=r"in UTF-8, got '.*caf\\udce9.*'; rename it"):
            open_data(pets, limit=2)

    def test_unknown_names_offer_the_nearest(self) -> None:
        with pytest.raises(UnknownName, match="did you mean cifar1"):
            open_data("cifar11")
        with pytest.raises(UnknownName, match="did you mean void"):
            open_data("masks:here?viod=3")
        with pytest.raises(DataError, match=r"needs a folder after the colon.*\./NAME for a folder"):
            open_data("imagenet")

    def test_not_fetched_yet(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path))
        with pytest.raises(DataError, match="robvit data cifar10"):
            open_data("cifar10")


class TestBroken:
    @pytest.fixture
    def broken(self, pets: Path) -> Path:
        good = (pets / "cat/0.png").read_bytes()
        (pets / "cat/2.png").write_bytes(good[: len(good) // 2])
        (pets / "dog/3.jpg").write_bytes(b"")
        return pets

    def test_left_out_counted_and_named_once(self, broken: Path) -> None:
        with pytest.warns(SkippedImages, match="2 of 7 images were skipped") as caught:
            found = open_data(broken)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert len(found) == 5
        assert set(found.skipped) == {"cat/2.png", "dog/3.jpg"}
        assert found.skipped["dog/3.jpg"] == "the file is empty"
        assert len(found.tensors()[0]) == 5

    def test_formats_that_are_not_read_are_named_too(self, pets: Path) -> None:
        for name in ("cat/a.HEIC", "dog/deep/b.jpe", "dog/notes.txt", "cat/.hidden.heic"):
            (pets / name).write_bytes(b"any")
        with pytest.warns(SkippedImages, match="2 of 7 images were skipped"):
            found = open_data(pets)
        assert found.skipped == {
            "cat/a.HEIC": ".HEIC is not read; convert it to PNG, say",
            "dog/deep/b.jpe": ".jpe is not read; convert it to PNG, say",
        }
        assert len(found) == 5
        assert open_data(pets, subset=found.names).skipped == {}
        with pytest.warns(SkippedImages, match="1 of 3 images were skipped"):
            assert list(open_data(pets / "cat").skipped) == ["a.HEIC"]
        paint(pets / "fox/0.png").rename(pets / "fox/0.avif")
        with pytest.raises(DataError, match="fox holds no images, its 1 are in formats that are not read"):
            open_data(pets)

    def test_a_limit_replaces_them(self, broken: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkippedImages)
            for seed in range(5):
                found = open_data(broken, limit=4, seed=seed)
                assert Counter(found.labels) == {0: 2, 1: 2}

    def test_unchecked_they_are_errors_when_read(self, broken: Path) -> None:
        found = open_data(broken, check=False)
        assert len(found) == 7
        with pytest.raises(ImageError, match=r"2\.png"):
            found[2]

    def test_nothing_left_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(b"junk")
        with pytest.raises(DataError, match=r"none of the 1 images .* a\.png"):
            open_data(tmp_path)


class TestSubsets:
    def test_stable_balanced_and_nested(self) -> None:
        part = open_data("sample", limit=50)
        assert Counter(part.labels) == dict.fromkeys(range(10), 5)
        assert part.names == open_data("sample", limit=50).names
        assert part.names[:23] == open_data("sample", limit=23).names
        assert part.names != open_data("sample", limit=50, seed=1).names
        assert max(Counter(open_data("sample", limit=23).labels).values()) == 3

    def test_the_draw_never_changes(self) -> None:
        assert open_data("sample", limit=3, seed=7).names == ["test/04058", "test/03010", "test/00434"]

    def test_another_file_does_not_reshuffle_the_others(self, pets: Path) -> None:
        before = [name for name in open_data(pets, limit=5).names if name.startswith("dog")]
        paint(pets / "dog/new.png")
        after = [name for name in open_data(pets, limit=6).names if name.startswith("dog")]
        assert [name for name in after if name != "dog/new.png"] == before

    def test_by_names_in_their_order(self, pets: Path, tmp_path: Path) -> None:
        names = ["dog/deep/1.png", "cat/0.png"]
        (tmp_path / "list.txt").write_text("\n".join(names) + "\n\n")
        assert open_data(pets, subset=tmp_path / "list.txt").names == names
        assert open_data(pets, subset=names).labels == [1, 0]
        with pytest.raises(DataError, match=r"1 of the subset's 2 .*'cat/9.png'.*'cat/0.png'"):
            open_data(pets, subset=["cat/0.png", "cat/9.png"])
        with pytest.raises(DataError, match="twice"):
            open_data(pets, subset=["cat/0.png", "cat/0.png"])
        with pytest.raises(DataError, match="robustbench-5000 or a file"):
            open_data(pets, subset="robustbench-500")

    def test_a_folder_is_divided_by_a_share(self, pets: Path) -> None:
        whole, spec = open_data(pets), f"folder:{pets}?test=0.4"
        test, train = open_data(spec), open_data(spec, split="train")
        assert sorted(test.names + train.names) == whole.names
        assert test.names == open_data(spec, split="test").names
        assert set(test.labels) == set(train.labels) == set(whole.labels)
        assert [whole.labels[whole.names.index(name)] for name in train.names] == train.labels
        with pytest.raises(DataError, match="splits train and test, got 'val'"):
            open_data(spec, split="val")
        for share in ("0", "1", "half"):
            with pytest.raises(InputError, match=f"test must be a share.*got '{share}'"):
                open_data(f"folder:{pets}?test={share}")

    def test_digest_knows_names_labels_and_order(self, pets: Path) -> None:
        found = open_data(pets)
        assert found.digest() == open_data(pets).digest()
        assert found.digest() != found.take([1, 0, 2, 3, 4]).digest()
        assert found.take([1, 0]).take([1]).names == ["cat/0.png"]
        (pets / "cat").rename(pets / "elk")
        assert open_data(pets).digest() != found.digest()

    @pytest.mark.parametrize("wrong", [{"limit": 0}, {"size": 0}, {"resize": "stretch"}])
    def test_settings_that_cannot_be_right(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
            open_data("sample", **wrong)


class TestBatches:
    def test_batches_cover_the_set_in_order_or_seeded(self) -> None:
        part = open_data("sample", limit=25)
        x, y = part.tensors()
        batches = list(part.batches(10))
        assert [len(labels) for _, labels in batches] == [10, 10, 5]
        assert torch.equal(torch.cat([images for images, _ in batches]), x)
        shuffled = [torch.cat([labels for _, labels in part.batches(10, shuffle=True, seed=3)]) for _ in "ab"]
        assert torch.equal(*shuffled)
        assert not torch.equal(shuffled[0], y)
        assert torch.equal(shuffled[0].sort()[0], y.sort()[0])

    def test_different_sizes_need_a_size(self, tmp_path: Path) -> None:
        paint(tmp_path / "a.png", size=(8, 8))
        paint(tmp_path / "b.png", size=(8, 9))
        with pytest.raises(DataError, match="8 x 8 and 9 x 8; open the set with size="):
            open_data(tmp_path).tensors()
        assert open_data(tmp_path, size=4, resize="crop").tensors()[0].shape == (2, 3, 4, 4)

    def test_travels_to_workers(self, pets: Path) -> None:
        found = pickle.loads(pickle.dumps(open_data(pets, size=8)))  # noqa: S301  (our own bytes)
        assert isinstance(found, ImageDataset)
        assert found.tensors()[0].shape == (5, 3, 8, 8)


class TestImageNet:
    TENCH, GOLDFISH, STINGRAY = "n01440764", "n01443537", "n01498041"  # labels 0, 1 and 6

    def test_folders_called_by_wordnet_ids(self, tmp_path: Path) -> None:
        for wordnet_id in (self.STINGRAY, self.TENCH):
            paint(tmp_path / "val" / wordnet_id / "ILSVRC2012_val_00000001.JPEG")
        for root in (tmp_path, tmp_path / "val"):
            found = open_data(f"imagenet:{root}")
            assert found.labels == [0, 6]
            assert found.names[0] == "n01440764/ILSVRC2012_val_00000001.JPEG"
        assert len(found.classes) == 1000
        assert found.classes[6] == "stingray"
        assert found.class_map is None

    def test_flat_files_called_by_wordnet_ids(self, tmp_path: Path) -> None:
        paint(tmp_path / "n01498041_stingray.jpg")
        paint(tmp_path / "n01443537_goldfish.jpg")
        assert open_data(tmp_path).labels == [1, 6]
        assert open_data(f"imagenet:{tmp_path}").labels == [1, 6]
        paint(tmp_path / "holiday.jpg")
        assert open_data(tmp_path).kind == "none"
        with pytest.raises(DataError, match=r"holiday\.jpg has no WordNet id"):
            open_data(f"imagenet:{tmp_path}")

    def test_variants_know_their_200_classes(self, tmp_path: Path) -> None:
        paint(tmp_path / "a" / self.STINGRAY / "0.jpg")
        found = open_data(f"imagenet-a:{tmp_path / 'a'}")
        assert found.labels == [6]
        assert found.class_map is not None
        assert found.class_map[:3] == [6, 11, 13]
        assert len(set(found.class_map)) == 200
        paint(tmp_path / "r" / self.GOLDFISH / "0.jpg")
        renditions = open_data(f"imagenet-r:{tmp_path / 'r'}")
        assert renditions.labels == [1]
        assert renditions.class_map != found.class_map
        with pytest.raises(DataError, match="not of this set, such as 'goldfish"):
            open_data(f"imagenet-a:{tmp_path / 'r'}")

    def test_corruptions_are_splits(self, tmp_path: Path) -> None:
        for split in ("gaussian_noise/1", "gaussian_noise/5", "fog/5"):
            paint(tmp_path / split / self.GOLDFISH / "0.JPEG", shade=len(split))
        found = open_data(f"imagenet-c:{tmp_path}", split="gaussian_noise/5")
        assert found.names == ["n01443537/0.JPEG"]
        assert found.labels == [1]
        assert len(open_data(f"imagenet-c:{tmp_path}", split="gaussian_noise")) == 2
        assert open_data(f"imagenet-c:{tmp_path}").names[0] == "fog/5/n01443537/0.JPEG"
        with pytest.raises(DataError, match="no split called 'snow/1'; it holds fog, gaussian_noise"):
            open_data(f"imagenet-c:{tmp_path}", split="snow/1")

    def test_ids_outside_the_thousand_are_refused(self, tmp_path: Path) -> None:
        paint(tmp_path / "n99999999/0.jpg")
        with pytest.raises(DataError, match="n99999999 is not one of"):
            open_data(f"imagenet:{tmp_path}")

    def test_robustbench_list(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        kept = tmp_path / "data/imagenet/robustbench-5000.txt"
        kept.parent.mkdir(parents=True)
        kept.write_text("n01443537/b.JPEG\nn01440764/a.JPEG")
        monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path))
        monkeypatch.setattr(imagenet, "_MEMBER_SHA256", sha256(kept))
        for name in ("n01440764/a.JPEG", "n01440764/c.JPEG", "n01443537/b.JPEG"):
            paint(tmp_path / "val" / name)
        found = open_data(f"imagenet:{tmp_path / 'val'}", subset="robustbench-5000")
        assert found.names == ["n01443537/b.JPEG", "n01440764/a.JPEG"]

    def test_robustbench_list_cannot_be_fetched(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        with pytest.raises(DataError, match=r"pip could not fetch robustbench.*put it at"):
            imagenet.robustbench_list()
        assert not list(tmp_path.rglob("*.txt"))


class TestMasks:
    MASK = [[0, 1, 2, 11], [255, 0, 0, 0]]  # noqa: RUF012

    @pytest.mark.parametrize(
        ("images", "masks", "split"),
        [
            ("images", "masks", None),
            ("images/training", "annotations/training", "train"),
            ("images/test", "labels/test", None),
            ("test/images", "test/masks", None),
        ],
    )
    def test_layouts(self, tmp_path: Path, images: str, masks: str, split: str | None) -> None:
        paint(tmp_path / images / "a.jpg", 50, size=(4, 2))
        paint_mask(tmp_path / masks / "a.png", self.MASK)
        found = open_data(f"masks:{tmp_path}?void=11", split=split)
        assert found.kind == "masks"
        assert found.classes == ["class 0", "class 1", "class 2"]
        x, mask = found[0]
        assert x.shape == (3, 2, 4)
        assert isinstance(mask, torch.Tensor)
        assert mask.dtype == torch.int64
        assert mask.tolist() == [[0, 1, 2, 255], [255, 0, 0, 0]]
        assert found.resized(5).tensors()[1].shape == (1, 5, 5)

    def test_ade20k_counts_from_one(self, tmp_path: Path) -> None:
        paint(tmp_path / "images/validation/a.jpg", size=(4, 1))
        paint_mask(tmp_path / "annotations/validation/a.png", [[0, 1, 2, 150]])
        found = open_data(f"ade20k:{tmp_path}")
        assert len(found.classes) == 150
        assert found.tensors()[1].tolist() == [[[255, 0, 1, 149]]]
        (tmp_path / "objectInfo150.txt").write_text(
            "Idx\tRatio\tName\n1\t0.1\twall\n2\t0.1\tbuilding, edifice\n"
        )
        assert open_data(f"ade20k:{tmp_path}").classes[1] == "building, edifice"

    def test_camvid_and_named_classes(self, tmp_path: Path) -> None:
        paint(tmp_path / "test/images/a.jpg", size=(4, 2))
        paint_mask(tmp_path / "test/masks/a.png", self.MASK)
        assert open_data(f"camvid:{tmp_path}").classes[3] == "road"
        (tmp_path / "classes.txt").write_text("sky\nroad\nsea\n")
        assert open_data(f"masks:{tmp_path}?void=11").classes == ["sky", "road", "sea"]
        with pytest.raises(DataError, match=r"mask value 11 is neither"):
            open_data(f"masks:{tmp_path}")
        with pytest.raises(InputError, match="void must be"):
            open_data(f"masks:{tmp_path}?void=none")

    def test_missing_masks_are_errors_and_odd_ones_skipped(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            paint(tmp_path / f"images/{name}.jpg", size=(4, 2))
        with pytest.raises(DataError, match="a folder called masks or annotations or labels"):
            open_data(f"masks:{tmp_path}")
        paint_mask(tmp_path / "masks/a.png", [[0, 1, 1, 0], [0, 0, 0, 0]])
        with pytest.raises(DataError, match=r"no mask for .*b\.jpg; expected .*b\.png"):
            open_data(f"masks:{tmp_path}")
        paint_mask(tmp_path / "masks/b.png", [[0, 1], [0, 1]])
        with pytest.warns(SkippedImages, match=r"the mask is \(2, 2\), the image \(2, 4\)"):
            assert open_data(f"masks:{tmp_path}").names == ["a.jpg"]


class Image_:
    """The small part of a Hugging Face feature that is looked at; `type(...).__name__` decides."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


Image_.__name__ = "Image"


class ClassLabel:
    names = ("cat", "dog")


class Table:
    """A Hugging Face table in miniature."""

    def __init__(self, features: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.features, self.rows = features, rows
        self.main, self.asked = "a" * 40, list[str | None]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        return self.rows[key] if isinstance(key, int) else [row[key] for row in self.rows]

    def cast_column(self, name: str, feature: Any) -> Table:
        assert feature.decode is False
        return Table({**self.features, name: feature}, self.rows)


class TestHub:
    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Table:
        data = [paint(tmp_path / f"{i}.png", i * 10) for i in range(3)]
        cells: list[Any] = [
            {"bytes": data[0].read_bytes(), "path": None},
            {"bytes": None, "path": str(data[1])},
            {"bytes": data[2].read_bytes(), "path": "2.png"},
            {"bytes": b"junk", "path": None},
            None,
        ]
        table = Table(
            {"img": Image_(), "label": ClassLabel()},
            [{"img": cell, "label": i % 2} for i, cell in enumerate(cells)],
        )
        asked = table.asked

        def load(name: str, config: str | None, split: str, revision: str | None) -> Table:
            asked.append(revision)
            return table

        fake = SimpleNamespace(
            Image=Image_,
            get_dataset_split_names=lambda name, config, revision: ["train", "validation"],
            load_dataset=load,
        )
        monkeypatch.setitem(sys.modules, "datasets", fake)
        monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(
            huggingface_hub.HfApi, "dataset_info", lambda self, name, timeout: SimpleNamespace(sha=table.main)
        )
        return table

    def test_images_labels_and_splits(self, hub: Table) -> None:
        with pytest.warns(SkippedImages, match="2 of 5"):
            found = open_data("hf:someone/pets")
        assert found.names == ["validation/00000000", "validation/00000001", "validation/00000002"]
        assert found.skipped["validation/00000004"] == "the dataset has no image in this row"
        assert found.labels == [0, 1, 0]
        assert found.classes == ["cat", "dog"]
        assert torch.allclose(found[2][0], torch.tensor(20 / 255))
        assert open_data("hf:someone/pets:train", check=False).names[0] == "train/00000000"
        with pytest.raises(DataError, match="no test split; choose one with split=: train, validation"):
            open_data("hf:someone/pets", split="test")

    def test_a_branch_that_moves_is_not_followed(
        self, hub: Table, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def recorded(spec: str) -> str | None:
            return open_data(spec, check=False).take([0]).facts().get("hub revision")

        assert recorded("hf:pets") == "a" * 40
        assert f"hf:pets?revision={'a' * 40}" in capfd.readouterr().err
        hub.main = "b" * 40  # the branch has moved
        assert recorded("hf:pets") == "a" * 40
        assert recorded(f"hf:pets?revision={'b' * 40}") == "b" * 40
        assert hub.asked == ["a" * 40, "a" * 40, "b" * 40]
        with pytest.raises(InputError, match="branches and tags move"):
            open_data("hf:pets?revision=main")

        def away(*_: object, **__: object) -> None:
            raise ConnectionError("no route")

        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", away)
        assert recorded("hf:cars") is None
        assert "did not say its revision (no route), so it is not known" in capfd.readouterr().err

    def test_columns_must_be_clear(self, hub: Table) -> None:
        hub.features["coarse"] = hub.features["fine"] = ClassLabel()
        for row in hub.rows:
            row.update(coarse=0, fine=1)
        assert open_data("hf:pets", check=False).labels == [0, 1, 0, 1, 0]
        assert open_data("hf:pets?label=fine", check=False).labels == [1] * 5
        del hub.features["label"]
        with pytest.raises(
            DataError, match=r"several columns could be the label: coarse, fine; say \?label="
        ):
            open_data("hf:pets")
        with pytest.raises(DataError, match="no column is called 'colour'"):
            open_data("hf:pets?label=colour")
        with pytest.raises(UnknownName, match="did you mean label"):
            open_data("hf:pets?lable=fine")

    def test_failures_are_told(self, hub: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.features.pop("label")
        assert open_data("hf:pets", check=False).kind == "none"
        hub.features["img"] = "text"
        with pytest.raises(DataError, match="expected a column of images"):
            open_data("hf:pets")

        def fail(*arguments: object, revision: str) -> None:
            raise RuntimeError("the hub is away")

        monkeypatch.setattr(sys.modules["datasets"], "get_dataset_split_names", fail)
        with pytest.raises(DataError, match="'pets' cannot be loaded: the hub is away"):
            open_data("hf:pets")
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataError, match=r"pip install 'robvit\[data\]'"):
            open_data("hf:pets")


def test_every_data_set_says_what_it_is_and_how_to_ask_for_it() -> None:
    assert "; folder:PATH?test=0.25 divides it" in DATASETS.info("folder").about
    for entry in DATASETS:
        assert entry.info.about
        assert re.split("[:?]", entry.info.example)[0] == entry.name


def test_pets_have_masks_or_breeds_and_a_split_of_their_own(tmp_path: Path) -> None:
    for breed in ("beagle", "birman"):
        for number in range(8):
            name = f"{breed}/{breed}_{number}"
            paint(tmp_path / "images" / f"{name}.png", number, (4, 1))
            paint_mask(tmp_path / "masks" / f"{name}.png", [[1, 1, 3, 2]])
    learn, judged = (open_data(f"pets:{tmp_path}", split=split) for split in ("train", "test"))
    assert (len(learn), len(judged)) == (12, 4)
    assert not set(learn.names) & set(judged.names)
    assert judged.classes == ["pet", "background"]
    _, mask = judged[0]
    assert isinstance(mask, torch.Tensor)
    assert mask.tolist() == [[0, 0, IGNORE, 1]]
    breeds = open_data(f"pets:{tmp_path}?target=breeds", split="test")
    assert breeds.names == judged.names
    assert sorted(breeds.labels) == [0, 0, 1, 1]
    with pytest.raises(InputError, match="target must be masks or breeds, got 'colour'"):
        open_data(f"pets:{tmp_path}?target=colour")


def test_images_beside_masks_are_not_taken_for_two_classes(tmp_path: Path) -> None:
    paint(tmp_path / "test" / "images" / "street.png")
    paint_mask(tmp_path / "test" / "masks" / "street.png", [[0, 1], [1, 0]])
    with pytest.raises(DataError, match=r"images beside masks.*open it as masks:PATH"):
        open_data(tmp_path)
    assert open_data(tmp_path / "test" / "images").kind == "none"
