"""Files that mean harm, or are merely broken: each case writes one and says how it would be opened.

`CASES` maps a name to a function of a folder; it returns what opens the file, and a part of the error that
must come of it. Whatever is run by opening it leaves a file called `canary`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save, save_file

import robvit
from helpers.report_samples import rich_record
from robvit.backbones.heads import load_head
from robvit.data import cifar, open_data
from robvit.data.archives import member, opened_tar, unpickle
from robvit.defenses.pool import load_tokens
from robvit.defenses.tokens import import_published
from robvit.defenses.tora.io import load_adapters
from robvit.defenses.tora.modules import AdapterShape
from robvit.evaluation.compare import open_record
from robvit.evaluation.protocol import find
from robvit.fetch import read_member
from robvit.record import Record
from robvit.tensor_files import FORMATS
from robvit.training.checkpoint import load_state
from robvit.training.recipe import load_recipe

Opened = tuple[Callable[[], object], str]
Case = Callable[[Path], Opened]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        assert name not in CASES, name
        CASES[name] = function
        return function

    return add


class Harm:
    """Unpickled by a careless reader, this makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def opens(path: Path, **resize: Any) -> Callable[[], object]:
    """Open a checkpoint as a person would."""
    return lambda: robvit.load(str(path), **{"arch": "robvit-mini", **resize})


# Pickles and torch's zip files.


def _selfish() -> dict[str, Any]:
    held: dict[str, Any] = {"w": torch.zeros(2)}
    held["model"] = held
    return held


def _sparse() -> torch.Tensor:
    place = torch.zeros(1, 1, dtype=torch.long)
    return torch.sparse_coo_tensor(place, torch.ones(1), (10**9,), check_invariants=True)


def _mini(kind: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = robvit.load("robvit-mini").net.state_dict()
    return {**tensors, "blocks.0.mlp.fc1.weight": tensors["blocks.0.mlp.fc1.weight"].to(kind)}


# What a .pt file may hold, as a function of the place where its code would leave a trace.
PICKLES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code in place of the weights": (lambda trace: {"state_dict": Harm(trace)}, "read safely"),
    "code beside the weights": (
        lambda trace: {"model": {"w": torch.ones(2)}, "e": Harm(trace)},
        "read safely",
    ),
    "code as the whole file": (Harm, "read safely"),
    "one number that claims a trillion": (lambda _: {"w": torch.ones(1).expand(10**12)}, "all of its values"),
    "a dictionary that holds itself": (lambda _: _selfish(), "'model' is no plain tensor"),
    "a sparse tensor": (lambda _: {"w": _sparse()}, "no plain tensor|read safely"),
    "a tensor on no device": (lambda _: {"w": torch.empty(10**6, device="meta")}, "no plain tensor"),
    "a list": (lambda _: [torch.zeros(2)], "got list"),
    "numbers for names": (lambda _: {1: torch.zeros(2)}, "state dict of tensors"),
    "a text among the tensors": (lambda _: {"w": torch.zeros(2), "x": "text"}, "'x' is no plain tensor"),
    "nothing": (lambda _: {}, "state dict of tensors"),
    "whole numbers for weights": (lambda _: _mini(torch.int64), "must hold torch.float32, got torch.int64"),
    "complex numbers for weights": (lambda _: _mini(torch.complex64), "got torch.complex64"),
    "another network": (lambda _: {"head.weight": torch.zeros(10**6)}, "do not fit"),
}


def _pickled(content: Callable[[Path], Any], flaw: str, suffix: str) -> Case:
    def build(folder: Path) -> Opened:
        torch.save(content(folder / "canary"), path := folder / f"evil{suffix}")
        return opens(path), flaw

    return build


for number, (title, held) in enumerate(PICKLES.items()):
    case(f"checkpoint: {title}")(_pickled(*held, (".pt", ".pth", ".pth.tar")[number % 3]))


@case("checkpoint: a bare pickle with code")
def _(folder: Path) -> Opened:
    (folder / "evil.pth").write_bytes(pickle.dumps(Harm(folder / "canary")))
    return opens(folder / "evil.pth"), "read safely"


@case("checkpoint: a zip that inflates a thousandfold")
def _(folder: Path) -> Opened:
    torch.save({"w": torch.zeros(2)}, plain := folder / "plain.pt")
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(folder / "evil.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(5 * 10**7) if name.endswith("data/0") else old.read(name))
    plain.unlink()
    return opens(folder / "evil.pt"), "it promises 5"


@case("checkpoint: a storage that claims a trillion numbers, in torch's old form")
def _(folder: Path) -> Opened:
    torch.save({"w": torch.zeros(77777)}, path := folder / "evil.pt", _use_new_zipfile_serialization=False)
    few, many = (pickle.dumps(n, protocol=2)[2:-1] for n in (77777, 10**12))
    path.write_bytes(path.read_bytes().replace(few, many))
    return opens(path), "read safely"


@case("checkpoint: a zip whose names climb out of their folder")
def _(folder: Path) -> Opened:
    with zipfile.ZipFile(folder / "evil.pt", "w") as archive:
        archive.writestr("../canary", "harm")
        archive.writestr("/tmp/canary", "harm")  # noqa: S108
    return opens(folder / "evil.pt"), "read safely"


@case("checkpoint: a tar whose names climb out of their folder")
def _(folder: Path) -> Opened:
    _tar(folder / "evil.pth.tar", {"../canary": b"harm", "storages": b"", "tensors": b"", "pickle": b""})
    return opens(folder / "evil.pth.tar"), "read safely"


def _raw(name: str, data: bytes, flaw: str = "can be read") -> None:
    """A checkpoint of these bytes."""

    def build(folder: Path) -> Opened:
        suffix = ".safetensors" if name.startswith("safetensors") else ".pt"
        (folder / f"evil{suffix}").write_bytes(data)
        return opens(folder / f"evil{suffix}"), flaw

    case(name)(build)


def header(content: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[Any], end: int, kind: str = "F32", start: int = 0) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


_raw("checkpoint: an empty file", b"")
_raw("checkpoint: a text", b"these are not the weights you are looking for")
_raw("checkpoint: the beginning of a zip", b"PK\3\4" + bytes(100))
_raw("safetensors: an empty file", b"")
_raw("safetensors: a header longer than any disk", header({}, length=2**64 - 1))
_raw("safetensors: a header longer than the file", header({}, length=10**6))
_raw("safetensors: a header that is no JSON", header(b"{'a': 1}"))
_raw("safetensors: a header nested ten thousand deep", header(b'{"a":' * 10**4 + b"1" + b"}" * 10**4))
_raw("safetensors: a header that is no text", header(b"\xff\xfe{}"))
_raw("safetensors: a header that is a list", header([1, 2]))
_raw("safetensors: a giant shape over little data", header({"w": tensor([10**6, 10**6], 8)}, bytes(8)))
_raw("safetensors: a shape that overflows", header({"w": tensor([2**40, 2**40], 8)}, bytes(8)))
_raw("safetensors: a negative shape", header({"w": tensor([-2], 8)}, bytes(8)))
_raw("safetensors: data beyond the end", header({"w": tensor([2], 10**9, start=10**9 - 8)}, bytes(8)))
_raw("safetensors: data that overlap", header({"v": tensor([2], 8), "w": tensor([2], 8)}, bytes(8)))
_raw("safetensors: a type nobody knows", header({"w": tensor([2], 8, kind="EVIL")}, bytes(8)))
_raw("safetensors: facts that are no texts", header({"__metadata__": {"a": [1]}}))
_raw("safetensors: no tensors at all", header({}), "state dict of tensors")


def _said(name: str, flaw: str, **facts: str) -> None:
    """A small checkpoint that says something of itself."""

    def build(folder: Path) -> Opened:
        save_file({"head.weight": torch.zeros(10, 8)}, folder / "evil.safetensors", facts)
        return opens(folder / "evil.safetensors", arch=None), flaw

    case(f"checkpoint says: {name}")(build)


_said("it is of a path", "expected a model's name", timm_name="../../etc/passwd")
_said("it is of the hub", "expected a model's name", timm_name="hf-hub:evil/model")
_said("it is of code", "evil:load", timm_name="evil:load")
_said("it is of a giant network", "do not fit vit_giant", timm_name="vit_giant_patch14_dinov2")
_said("broken JSON", "can be read", timm_name="robvit_mini", build="{")
_said("a list", "is damaged: build", timm_name="robvit_mini", build="[1]")
_said("a billion classes", "no such head", timm_name="robvit_mini", build='{"num_classes": 1000000000}')
_said("images as large as a town", "img_size", timm_name="robvit_mini", build='{"img_size": [1000000, 32]}')
_said("colours of text", "normalise", timm_name="robvit_mini", build='{"normalise": [["a", 0], [1]]}')


# Tokens, pools, heads, adapters, states.

TOKENS = {"fingerprint": "", "key_id": "k", "settings": {}, "layers": [0]}
HEAD = {"kind": "linear", "classes": 10, "fingerprint": "f", "names": []}
ADAPTERS = {**AdapterShape(8, 2, 3, trades=(0.5,))._asdict(), "fingerprint": "f", "settings": {}}


def _file(
    name: str, flaw: str, opener: Callable[[Path], object], tensors: dict[str, torch.Tensor], **facts: Any
) -> None:
    def build(folder: Path) -> Opened:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
        (folder / "evil.safetensors").write_bytes(save(tensors, texts))
        return lambda: opener(folder / "evil.safetensors"), flaw

    case(name)(build)


def _tokens(name: str, flaw: str, values: torch.Tensor, about: Any = TOKENS) -> None:
    _file(f"tokens: {name}", flaw, load_tokens, {"tokens": values}, format="robvit-tokens-1", about=about)


_tokens("whole numbers", "must be floats", torch.zeros(1, 2, 8, dtype=torch.int8))
_tokens("eight-bit floats", "must be floats", torch.zeros(1, 2, 8).to(torch.float8_e4m3fn))
_tokens("not a number", "must be finite", torch.full((1, 2, 8), torch.nan))
_tokens("flat", "must be floats", torch.zeros(2, 8))
_tokens("facts that are no JSON", "can be read", torch.zeros(1, 2, 8), "{")
_tokens("facts that are a number", "must tell", torch.zeros(1, 2, 8), 7)
_tokens("a fact nobody knows", "must tell", torch.zeros(1, 2, 8), {**TOKENS, "__class__": "x"})
_tokens("layers that are words", "layers must be", torch.zeros(1, 2, 8), {**TOKENS, "layers": ["first"]})
_tokens("layers that are a number", "must be of type list", torch.zeros(1, 2, 8), {**TOKENS, "layers": 1})
_file("tokens: of another kind", "does not hold tokens", load_tokens, {"tokens": torch.zeros(1, 2, 8)})
_file(
    "pool: more sets told of than there are",
    "tell of each of 1",
    load_tokens,
    {"tokens 0": torch.zeros(1, 2, 8)},
    format="robvit-token-pool-1",
    about=[TOKENS] * 9,
)
_file(
    "pool: facts that are a number",
    "tell of each",
    load_tokens,
    {"tokens 0": torch.zeros(1, 2, 8)},
    format="robvit-token-pool-1",
    about=3,
)


@case("tokens to import: code")
def _(folder: Path) -> Opened:
    torch.save({"rtokens": Harm(folder / "canary")}, folder / "evil.pt")
    return lambda: import_published(folder / "evil.pt"), "read safely"


@case("tokens to import: one number that claims a trillion")
def _(folder: Path) -> Opened:
    torch.save({"rtokens": torch.zeros(1).expand(1, 10**9, 10**3)}, folder / "evil.pt")
    return lambda: import_published(folder / "evil.pt"), "must hold"


def _head(name: str, flaw: str, state: dict[str, torch.Tensor] | None = None, **about: Any) -> None:
    fine = {"linear.weight": torch.zeros(10, 8), "linear.bias": torch.zeros(10)}
    _file(
        f"head: {name}",
        flaw,
        load_head,
        fine if state is None else state,
        format="robvit-head-1",
        head={**HEAD, **about},
    )


_head("a kind nobody knows", "os.system", kind="os.system")
_head("a billion classes", "got 1000000000 classes", classes=10**9)
_head("classes in words", "must be of type int", classes="ten")
_head("classes it has no weights for", "do not fit", classes=1000)
_head("names for other classes", "and 3 names", names=["a", "b", "c"])
_head("no weights", "is damaged", {"x": torch.zeros(1)})
_head("weights of no dimension", "is damaged", {"linear.weight": torch.zeros(())})
_head(
    "whole numbers for weights",
    "got torch.int32",
    {"linear.weight": torch.zeros(10, 8, dtype=torch.int32), "linear.bias": torch.zeros(10)},
)
_head(
    "neighbours of classes that are not there",
    "labels must lie in 0..9",
    {"bank": torch.zeros(2, 8), "labels": torch.tensor([3, 10**9])},
    kind="knn",
)
_head(
    "more neighbours than labels",
    "a label for each",
    {"bank": torch.zeros(2, 8), "labels": torch.tensor([3])},
    kind="knn",
)


def _adapters(name: str, flaw: str, **about: Any) -> None:
    _file(
        f"adapters: {name}",
        flaw,
        load_adapters,
        {"trades": torch.zeros(1), "place": torch.zeros(())},
        format=FORMATS["adapters"].word,
        about={**ADAPTERS, **about},
    )


_adapters("a billion blocks", "is damaged", depth=10**9)
_adapters("a width of a billion", "is damaged", width=10**9)
_adapters("a width that overflows", "is damaged", width=10**18)
_adapters("nothing to do", "is damaged", width=0)
_adapters("a tuning nobody knows", "tuning must be", tuning="evil")
_adapters("trade-offs in words", "is damaged", trades=["a"])
_adapters("weights of another shape", "do not fit")
_file(
    "adapters: no facts", "must tell", load_adapters, {"x": torch.zeros(1)}, format=FORMATS["adapters"].word
)
_file(
    "state: facts that are no JSON",
    "can be read",
    load_state,
    {"x": torch.zeros(1)},
    format="robvit-training-1",
    facts="{",
)


# Records.


def _record(name: str, flaw: str, change: Callable[[dict[str, Any]], object]) -> None:
    def build(folder: Path) -> Opened:
        content = asdict(rich_record())
        change(content)
        (folder / "evil.json").write_text(json.dumps(content))
        return lambda: open_record(folder / "evil.json"), flaw

    case(f"record: {name}")(build)


def _deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


_record("another schema", "schema 3", lambda c: c.update(schema="2"))
_record("a field nobody knows", "unknown field '__class__'", lambda c: c.update(__class__="evil"))
_record("no trials", "missing", lambda c: c.pop("trials"))
_record("trials that are a text", "missing or of another kind", lambda c: c.update(trials="all right"))
_record(
    "outcomes that are words", "Trial.correct must be", lambda c: c["trials"][0].update(correct=["yes"] * 60)
)
_record(
    "outcomes that are a text", "Trial.correct must be", lambda c: c["trials"][0].update(correct="y" * 60)
)
_record("predictions that are lists", "Trial.predicted", lambda c: c["trials"][0].update(predicted=[[]] * 60))
_record("a threat in words", "Trial.threat must be", lambda c: c["trials"][1].update(threat="linf 8/255"))
_record("a threat of words", "Trial.threat must be", lambda c: c["trials"][1]["threat"].update(eps="8/255"))
_record("a threat with more", "of another kind", lambda c: c["trials"][1]["threat"].update(colour="red"))
_record("seconds that are a text", "Trial.seconds", lambda c: c["trials"][0].update(seconds="1e9"))
_record("outcomes left out", "must have 60 entries", lambda c: c["trials"][0].update(correct=[True]))
_record("an image skipped that is not there", "skipped", lambda c: c["trials"][0].update(skipped=[10**9]))
_record("figures that are texts", "Record.metrics", lambda c: c.update(metrics={"a": "b"}))
_record("a model that is a list", "Record.model", lambda c: c.update(model=["evil"]))
_record("a table whose rows differ", "4 cells", lambda c: c["tables"][0]["rows"].append([1]))
_record("a curve of empty points", r"\[x, y\]", lambda c: c["curves"][0]["lines"].update(evil=[[]]))
_record("nested a hundred deep", "Trial.settings", lambda c: c["trials"][0].update(settings={"a": _deep(99)}))


def _text(name: str, flaw: str, opener: Callable[[Path], object], file: str, data: bytes) -> None:
    def build(folder: Path) -> Opened:
        (folder / file).write_bytes(data)
        return lambda: opener(folder / file), flaw

    case(name)(build)


_text("record: no JSON", "can be read", Record.load, "evil.json", b"{'schema': 2}")
_text("record: no text", "can be read", Record.load, "evil.json", b"\xff\xfe\0")
_text("record: nested a hundred thousand deep", "can be read", Record.load, "evil.json", b"[" * 10**5)
_text("record: a number", "got int", Record.load, "evil.json", b"7")


@case("record: a folder")
def _(folder: Path) -> Opened:
    (folder / "evil.json").mkdir()
    return lambda: Record.load(folder / "evil.json"), "not a regular file"


@case("record: a pipe that never ends")
def _(folder: Path) -> Opened:
    os.mkfifo(folder / "evil.json")
    return lambda: Record.load(folder / "evil.json"), "not a regular file"


# YAML.

LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n".encode() for i in range(20)
)
for title, reader in (("protocol", find), ("recipe", load_recipe)):
    _text(
        f"{title}: a tag that runs code",
        "plain YAML",
        reader,
        "evil.yaml",
        b"about: !!python/object/apply:os.mkdir [canary]\n",
    )
    _text(f"{title}: a tag of one's own", "plain YAML", reader, "evil.yaml", b"about: !evil {a: 1}\n")
    _text(f"{title}: aliases that stand for exabytes", "has an alias", reader, "evil.yaml", LAUGHS)
    _text(f"{title}: nested five thousand deep", "plain YAML", reader, "evil.yaml", b"a: " + b"[" * 5000)
    _text(f"{title}: a day that never was", "plain YAML", reader, "evil.yaml", b"about: 2026-99-99\n")
    _text(f"{title}: a list", "must hold keys and values", reader, "evil.yaml", b"- a\n")
    _text(f"{title}: numbers for keys", "keys that are no words", reader, "evil.yaml", b"1: 2\n")
    _text(f"{title}: no text", "can be read", reader, "evil.yaml", b"\xff\xfe\0")
    _text(f"{title}: longer than anyone writes", "larger than", reader, "evil.yaml", b"a: 1\n" * 10**5)
    _text(f"{title}: a key nobody knows", "evil", reader, "evil.yaml", b"evil: 1\n")


@case("recipe: based on itself")
def _(folder: Path) -> Opened:
    path = folder / "evil.yaml"
    path.write_text(f"base: {path}\n")
    return lambda: load_recipe(path), "has no end"


_text("recipe: based on a list", "base must be", load_recipe, "evil.yaml", b"base: [mini]\n")


# Images and masks.


def _png(width: int, height: int, data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    top = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    middle = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + top + middle + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def _saved(size: tuple[int, int], kind: str) -> bytearray:
    held = io.BytesIO()
    Image.new("RGB", size).save(held, kind)
    return bytearray(held.getvalue())


def _gif() -> bytes:
    data = _saved((8, 8), "GIF")
    data[6:10] = struct.pack("<HH", 65535, 65535)
    return bytes(data)


def _bmp() -> bytes:
    data = _saved((8, 8), "BMP")
    data[18:26] = struct.pack("<ii", 2**30, 2**30)
    return bytes(data)


def _tiff() -> bytes:
    tags = [
        (256, 4, 1, 2**31 - 1),
        (257, 4, 1, 2**31 - 1),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (277, 3, 1, 1),
        (278, 4, 1, 1),
        (279, 4, 1, 1),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


_IMAGES = {
    "a PNG of four billion pixels": (_png(65000, 65000, b"\0"), "bomb"),
    "a GIF of four billion pixels": (_gif(), "decoded"),
    "a BMP of a quintillion pixels": (_bmp(), "bomb"),
    "a TIFF of four quintillion pixels": (_tiff(), "bomb|decoded"),
    "a PNG with less data than it says": (_png(64, 64, b"\0"), "decoded"),
    "a PNG whose text inflates to a gigabyte": (
        _png(8, 8, b"\0", (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**9 // 8)))),
        "decoded",
    ),
    "PostScript that would go to another program": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(canary) (w) file closefile\n",
        "not an image",
    ),
    "half a JPEG": (bytes(_saved((64, 64), "JPEG"))[:300], "decoded"),
    "a script": (b"<script>alert(1)</script>", "not an image"),
    "an empty file": (b"", "empty"),
}
for title, (content, flaw) in _IMAGES.items():
    _text(f"image: {title}", flaw, open_data, "evil.png", content)


@case("image: a file of a terabyte of nothing")
def _(folder: Path) -> Opened:
    with (folder / "evil.png").open("wb") as file:
        file.truncate(2**40)
    return lambda: open_data(folder / "evil.png"), "at most 800,000,000 are read"


@case("image: a pipe that never ends")
def _(folder: Path) -> Opened:
    os.mkfifo(folder / "evil.png")
    return lambda: open_data(folder), "no images"


def _masked(name: str, flaw: str, mask: Image.Image, spec: str = "camvid", names: bytes = b"") -> None:
    def build(folder: Path) -> Opened:
        for part in ("images", "masks"):
            (folder / part).mkdir()
        Image.new("RGB", (8, 8)).save(folder / "images/evil.png")
        mask.save(folder / "masks/evil.png")
        if names:
            (folder / "classes.txt").write_bytes(names)
        return lambda: open_data(f"{spec}:{folder}"), flaw

    case(f"mask: {name}")(build)


_masked("colours for classes", "one whole number a pixel", Image.new("RGB", (8, 8)))
_masked("a class nobody knows", "mask value 200", Image.new("L", (8, 8), 200))
_masked("of another size", "they must agree", Image.new("L", (9, 8)))
_masked("names that are no text", "can be read", Image.new("L", (8, 8)), "masks", b"\xff\xfe\0")


# Archives.


def _tar(path: Path, members: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".tgz", ".gz") else "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        if link:
            entry = tarfile.TarInfo(link[0])
            entry.type, entry.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(entry)
    return path


def _member(path: Path, name: str) -> bytes:
    with opened_tar(path) as tar:
        return member(tar, name)


@case("tar: a name that climbs out of its folder")
def _(folder: Path) -> Opened:
    path = _tar(folder / "evil.tar", {"../canary": b"harm", "/tmp/canary": b"harm"})  # noqa: S108
    return lambda: cifar.from_archive(cifar.SETS["cifar10"], path), "no member"


@case("tar: a link to a secret")
def _(folder: Path) -> Opened:
    path = _tar(folder / "evil.tar", {}, ("batches.meta", "/etc/passwd"))
    return lambda: _member(path, "batches.meta"), "not a plain file"


@case("tar: a member that claims a terabyte")
def _(folder: Path) -> Opened:
    entry = tarfile.TarInfo("big")
    entry.size = 2**40
    with gzip.open(folder / "evil.tgz", "wb") as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10**6))
    return lambda: _member(folder / "evil.tgz", "wanted"), "claims to hold more"


@case("tar: cut off")
def _(folder: Path) -> Opened:
    path = _tar(folder / "evil.tgz", {"wanted": os.urandom(10**5)})
    path.write_bytes(path.read_bytes()[:5000])
    return lambda: _member(path, "wanted"), "damaged"


def _unpickled(path: Path) -> object:
    return unpickle(path.read_bytes(), b"data")


_text("tar: no tar at all", "not a tar archive", opened_tar, "evil.tgz", b"junk" * 999)
_text("archive's pickle: code", "refused", _unpickled, "evil.pkl", b"cos\nmkdir\n(S'canary'\ntR.")
_text(
    "archive's pickle: a memory of billions",
    "refused",
    _unpickled,
    "evil.pkl",
    b"\x80\x02}r\xff\xff\xff\x7fX.",
)
_text(
    "archive's pickle: nested without end",
    "refused|no entry",
    _unpickled,
    "evil.pkl",
    b"\x80\x02" + b"(" * 10**5 + b"t" * 10**5 + b".",
)


def _wheel(name: str, flaw: str, change: Callable[[bytes], bytes], opener: Callable[[Path], object]) -> None:
    def build(folder: Path) -> Opened:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            archive.writestr("inside", b"x" * 100)
            archive.writestr("../canary", b"harm")
        (folder / "evil.whl").write_bytes(change(held.getvalue()))
        return lambda: opener(folder / "evil.whl"), flaw

    case(f"wheel: {name}")(build)


def _claims(size: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        where = data.index(b"PK\1\2") + 24  # the uncompressed size in the central directory
        return data[:where] + struct.pack("<I", size) + data[where + 4 :]

    return change


_wheel("a member that claims gigabytes", "it is not read", _claims(2**31), lambda p: read_member(p, "inside"))
_wheel("a member of another size", "can read", _claims(50), lambda p: read_member(p, "inside"))
_wheel("no such member", "has no file", lambda d: d, lambda p: read_member(p, "model.onnx"))
_wheel("no zip", "can read", lambda d: d[50:-50], lambda p: read_member(p, "inside"))


# Names.


def _named(name: str, flaw: str, opener: Callable[[], object]) -> None:
    case(f"name: {name}")(lambda folder: (opener, flaw))


_named("a model above the folder", "no file at", lambda: robvit.load("../../etc/passwd.pt"))
_named("a model that is no checkpoint", "expected a checkpoint", lambda: robvit.load("/etc/passwd"))
_named("a model behind a known one", "no file at", lambda: robvit.load("robvit-mini/../../../x.safetensors"))
_named("a model of three hundred letters", "no file at", lambda: robvit.load("/" + "a" * 300))
_named("a model with a null byte", "no file at|embedded null", lambda: robvit.load("a/\0.pt"))
_named("a model that is a command", "no model is called", lambda: robvit.load("$(touch canary)"))
_named("a network above the folder", "no file at", lambda: robvit.load("../x", pretrained=False))
_named("data above the folder", "which does not exist", lambda: open_data("../../no/such"))
_named("a part above the folder", "no split called", lambda: open_data(Path.cwd(), split="../.."))
_named("a bundled set elsewhere", "takes nothing", lambda: open_data("sample:../../etc"))
_named("a protocol above the folder", "no protocol is called", lambda: find("../../etc/passwd"))
_named("a recipe above the folder", "no recipe is called", lambda: load_recipe("../../etc/passwd"))
_named("tokens that are a folder", "not a regular file", lambda: load_tokens(Path.cwd()))
_named("an option nobody knows", "no option of masks", lambda: open_data("masks:x?__class__=1"))


@case("name: a subset that is no text")
def _(folder: Path) -> Opened:
    (folder / "evil.txt").write_bytes(b"\xff\xfe\0")
    return lambda: open_data("sample", subset=folder / "evil.txt"), "can be read"
