"""Models that are files of other tools, ONNX and TorchScript, judged by what they answer.

No pickle of Python's is opened for either. onnxruntime runs a graph of operators that it knows. TorchScript
is a program: torch reads and runs it without Python, but some of its operators read and write files. So the
program's text is read first, and one that calls more than arithmetic on tensors is refused.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.data.decode import RESIZE_MODES
from robvit.errors import InputError, Unsupported
from robvit.files import parse_json, sha256
from robvit.processes import processes

# Operators that are not for users check their arguments less; these are what common layers are written with.
PRIVATE = frozenset(
    (
        *("_convolution", "_convolution_mode", "_log_softmax", "_native_multi_head_attention"),
        *("_shape_as_tensor", "_softmax", "_transformer_encoder_layer_fwd", "_unsafe_view", "_weight_norm"),
    )
)
LIBRARIES = ("aten", "prim")  # whose operators compute; others are compiled extensions
ELSEWHERE = frozenset(("getattr", "rpc_async", "rpc_remote", "rpc_sync"))  # hidden names, other machines
STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
Answer = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Opened:
    """A file that answers: pixels as it wants them (B 3 H W) to logits (B K), and what it tells of itself.

    `size` is the side of its images, None for any; `inside` says that it normalises by itself; `resize` is
    how images became square for it, if it tells.
    """

    answer: Answer
    size: int | None = None
    inside: bool = False
    classes: list[str] = field(default_factory=list)
    resize: str = ""


class Normalised(nn.Module):
    """A network behind its normalisation: pixels in [0,1] to logits."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, net: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net((x - self.mean) / self.std)


class BlackBox(nn.Module):
    """A file that answers images (B 3 H W) in [0,1] with logits (B K), without gradients."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, answer: Answer, statistics: Statistics, names: list[str], kind: str) -> None:
        super().__init__()
        self.answer, self.names, self.kind = answer, names, kind
        self.usual_resize = ""  # how images become square, unless something else is wanted
        for name, values in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1))

    def statistics(self) -> str:
        """Mean and deviation for people and for the model's identity."""
        return "/".join(",".join(f"{v:g}" for v in one.flatten().tolist()) for one in (self.mean, self.std))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.answer((x - self.mean) / self.std).to(x)
        except Exception as error:  # each runtime has exceptions of its own; most often the size is wrong
            reason = [line for line in str(error).splitlines() if line.strip()][-1:] or [type(error).__name__]
            raise InputError(
                f"the {self.kind} file fails on {len(x)} images of {x.shape[-2]}x{x.shape[-1]} pixels: "
                f"{reason[0].strip()[:200]}; give the size that it was made for (--img-size)"
            ) from error


def statistics_of(normalise: str | Statistics) -> Statistics:
    """Mean and deviation of each channel, by their name or as they are."""
    if not isinstance(normalise, str):
        return normalise
    if normalise not in STATISTICS:
        raise InputError(f"normalise must be {', '.join(STATISTICS)} or (mean, std), got {normalise!r}")
    return STATISTICS[normalise]


def open_black_box(
    path: Path, *, img_size: int | None = None, normalise: str | Statistics | None = None
) -> tuple[BlackBox, int | None, str]:
    """The model in an ONNX or TorchScript file, the side of its images, and the file's SHA-256."""
    is_onnx = path.suffix.lower() == ".onnx"
    opened = _onnx(path) if is_onnx else _torchscript(path)
    if img_size and opened.size and img_size != opened.size:
        raise InputError(f"{path.name} takes images of {opened.size} pixels a side, got img_size={img_size}")
    if normalise is None and not opened.inside:
        raise InputError(
            f"nothing tells how {path.name} wants its pixels normalised; give --normalise imagenet, "
            "--normalise none if it does so itself, or MEAN/STD such as 0.5/0.5"
        )
    if normalise not in (None, "none") and opened.inside:
        raise InputError(f"{path.name} normalises inside, as its metadata says; leave --normalise out")
    kind = "ONNX" if is_onnx else "TorchScript"
    net = BlackBox(opened.answer, statistics_of(normalise or "none"), opened.classes, kind).eval()
    net.usual_resize = opened.resize
    return net, img_size or opened.size, sha256(path)


# --- ONNX ---------------------------------------------------------------------------------------------


def _onnx(path: Path) -> Opened:
    if importlib.util.find_spec("onnxruntime") is None:
        raise Unsupported("an ONNX file needs onnxruntime; install it with: pip install 'robvit[onnx]'")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception for each of its states, and no common one
        raise InputError(f"onnxruntime cannot open {path.name}: {str(error).splitlines()[0]}") from None
    facts: dict[str, str] = session.get_modelmeta().custom_metadata_map
    pixels, logits = _input(session, path), _output(session, path)
    channels_last = len(pixels.shape) == 4 and pixels.shape[3] == 3 and pixels.shape[1] != 3
    batch, side = pixels.shape[0], pixels.shape[1 if channels_last else 2]
    kind = "float16" if "float16" in pixels.type else "float32"

    def run(x: torch.Tensor) -> torch.Tensor:
        values = (x.permute(0, 2, 3, 1) if channels_last else x).cpu().numpy().astype(kind)
        return torch.from_numpy(session.run([logits], {pixels.name: values})[0])

    ours = facts.get("producer", "").startswith("robvit ")
    names = parse_json(facts["classes"], path, "names of classes") if ours and "classes" in facts else []
    return Opened(
        _in_batches(run, batch) if isinstance(batch, int) else run,
        side if isinstance(side, int) else None,
        inside=ours and "normalised inside" in facts.get("input", ""),
        classes=[str(name) for name in names],
        resize=facts["resize"] if ours and facts.get("resize") in RESIZE_MODES else "",
    )


def _input(session: Any, path: Path) -> Any:
    """The one input of a session, which must take images as floats."""
    wanted = session.get_inputs()
    if len(wanted) != 1 or len(wanted[0].shape) != 4 or "float" not in wanted[0].type:
        got = "; ".join(f"{one.name} {one.type} {one.shape}" for one in wanted)
        raise InputError(f"{path.name} must take one batch of images (B 3 H W) as floats, it takes {got}")
    return wanted[0]


def _output(session: Any, path: Path) -> str:
    """The output with logits: the one called so, or the one of shape (B K)."""
    found = [one.name for one in session.get_outputs() if len(one.shape) == 2]
    named = [name for name in found if name == "logits"] or found
    if len(named) != 1:
        got = "; ".join(f"{one.name} {one.shape}" for one in session.get_outputs())
        raise InputError(
            f"{path.name} must have one output of logits (B K), it has {got}; export it with its classifier"
        )
    return str(named[0])


def _in_batches(run: Answer, size: int) -> Answer:
    """The answer of a graph that takes batches of one size: the last one is filled up."""

    def answer(x: torch.Tensor) -> torch.Tensor:
        parts = []
        for part in x.split(size):
            missing = size - len(part)
            parts.append(run(torch.cat((part, part[:1].expand(missing, -1, -1, -1))))[: len(part)])
        return torch.cat(parts)

    return answer


# --- TorchScript --------------------------------------------------------------------------------------


def _torchscript(path: Path) -> Opened:
    checked = _checked_archive(path)
    device = processes().device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch would have everybody leave the format
            program = torch.jit.load(checked, map_location=device).eval()
    except Exception as error:  # a damaged file fails in whatever way it likes
        raise InputError(f"torch cannot open {path.name}: {str(error).splitlines()[0]}") from None

    def answer(x: torch.Tensor) -> torch.Tensor:
        found = program(x.to(device))
        if isinstance(found, tuple | list):
            found = found[0]
        return found if isinstance(found, torch.Tensor) else torch.zeros(len(x), 0)

    return Opened(answer)


def _checked_archive(path: Path) -> io.BytesIO:
    """The archive packed anew from what was read and found harmless: torch sees nothing else."""
    packed = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as given, zipfile.ZipFile(packed, "w") as fresh:
            if sum(info.file_size for info in given.infolist()) > 2 * path.stat().st_size:
                raise InputError(f"{path.name} would unpack to far more than it holds; it is not opened")
            if any(info.filename.endswith("model.json") for info in given.infolist()):
                raise InputError(
                    f"{path.name} is in TorchScript's oldest format; save it anew by a newer torch"
                )
            for info in given.infolist():
                content = given.read(info)
                if info.filename.endswith(".py"):
                    _check_program(content.decode(), path.name)
                fresh.writestr(info.filename, content)
    except (zipfile.BadZipFile, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path.name} is not a TorchScript file that can be read: {error}") from None
    packed.seek(0)
    return packed


def _check_program(text: str, name: str) -> None:
    """Refuse a program that calls anything but arithmetic on tensors."""
    for called in _names_in(ast.parse(text)):
        if called in _refused() or called.startswith(("ops.", "torch.classes")):
            raise InputError(
                f"{name} calls {called}, which may do more than compute, so it is not opened; "
                "export the model as ONNX instead"
            )


def _names_in(program: ast.AST) -> Iterator[str]:
    """Every attribute in a program's text, by a dot or by getattr; operators have no other names there.

    Operators and objects of compiled extensions, quantised layers say, are named by their library.
    """
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute):
            inside = getattr(node.value, "id", "") or getattr(node.value, "attr", "")
            extension = (inside == "ops" and node.attr not in LIBRARIES) or node.attr == "classes"
            yield f"{inside}.{node.attr}" if extension else node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = node.args[1] if len(node.args) > 1 else None
            yield str(name.value) if isinstance(name, ast.Constant) else "getattr"


@functools.cache
def _refused() -> frozenset[str]:
    """The names of this torch's operators that take the name of a file, and of private ones but for a few."""
    files, private = set[str](), set[str]()
    for schema in torch._C._jit_get_all_schemas():
        name, texts = (
            schema.name.partition("::")[2],
            [a.name for a in schema.arguments if "str" in str(a.type)],
        )
        if any("file" in text or "path" in text for text in texts):
            files.add(name)
        if name.startswith("_") and name not in PRIVATE:
            private.add(name)
    return frozenset(files | private | ELSEWHERE)
