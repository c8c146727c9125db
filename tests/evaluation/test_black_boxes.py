"""ONNX and TorchScript files as black boxes: judged by their answers, refused where they do more."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robvit
from robvit.checking import check
from robvit.cli import app
from robvit.data import open_data
from robvit.errors import InputError, Unsupported
from robvit.evaluation.classifiers import model_facts, open_classifier
from robvit.evaluation.protocol import Protocol
from robvit.exporting.formats import export
from robvit.reviewing import normalisation

# TorchScript is deprecated; files of it are about for years.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")

TINY = {
    "name": "tiny@1",
    "about": "A few queries.",
    "threat": {"norm": "linf", "eps": "8/255"},
    "attacks": [{"attack": "square", "attacker": "black-box", "settings": {"steps": 3}}],
}


class Ten(nn.Module):
    """A network of ten classes that takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
        self.last = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.parts(x).mean((2, 3)))
        return logits


class Writes(Ten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written = torch.from_file("overwritten.bin", True, 4).fill_(1.0)
        logits: torch.Tensor = self.last(self.parts(x).mean((2, 3)))
        return logits + written.sum()


def scripted(net: nn.Module, path: Path) -> Path:
    torch.jit.script(net.eval()).save(path)
    return path


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """robvit-mini as our own export writes it."""
    path = tmp_path_factory.mktemp("onnx") / "mini.onnx"
    export(robvit.load("robvit-mini"), path, images=open_data("sample", limit=4).tensors()[0])
    return path


def external(folder: Path, location: str, weight: float) -> Path:
    """An ONNX file whose weights lie in another one."""
    onnx = pytest.importorskip("onnx")
    held = onnx.TensorProto(name="w", data_type=1, dims=[3, 10], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "120")):
        held.external_data.add(key=key, value=value)
    numbers = torch.arange(30) * weight
    (folder / location).write_bytes(numbers.float().numpy().tobytes())
    make, nodes = onnx.helper, (("GlobalAveragePool", "x", "p"), ("Flatten", "p", "f"))
    graph = make.make_graph(
        [
            *(make.make_node(kind, [given], [out]) for kind, given, out in nodes),
            make.make_node("MatMul", ["f", "w"], ["logits"]),
        ],
        "net",
        [make.make_tensor_value_info("x", 1, ["b", 3, 32, 32])],
        [make.make_tensor_value_info("logits", 1, ["b", 10])],
        [held],
    )
    path = folder / "net.onnx"
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_beside_an_onnx_file_are_part_of_its_identity(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    one = open_classifier(external(tmp_path / "inner", "w.bin", 1.0), normalise="none")
    other = open_classifier(external(tmp_path / "inner", "w.bin", -1.0), normalise="none")
    assert one.file_sha256 == other.file_sha256
    assert one.identity != other.identity
    for outside in ("../w.bin", str(tmp_path / "w.bin")):
        with pytest.raises(InputError, match="onnxruntime cannot open"):
            open_classifier(external(tmp_path / "inner", outside, 1.0), normalise="none")


def test_a_torchscript_file_that_unpacks_to_far_more_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.torchscript"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data/0", bytes(10**6))
    with pytest.raises(InputError, match="far more than it holds"):
        open_classifier(path, normalise="none")


@pytest.mark.slow
def test_our_onnx_tells_its_size_and_normalises_inside(onnx: Path) -> None:
    box, model = open_classifier(onnx), robvit.load("robvit-mini")
    x = open_data("sample", limit=4).tensors()[0]
    torch.testing.assert_close(box.net(x), model(x).detach(), rtol=1e-3, atol=1e-3)
    assert (box.size, box.black_box, box.name) == (32, True, "mini.onnx")
    facts = model_facts(box)
    assert facts["access"] == "answers only (ONNX)"
    assert len(facts["file_sha256"]) == 64
    assert str(onnx.parent) not in str(facts)
    with pytest.raises(InputError, match="normalises inside"):
        open_classifier(onnx, normalise="imagenet")
    with pytest.raises(InputError, match="32 pixels a side, got img_size=64"):
        open_classifier(onnx, img_size=64)


@pytest.mark.slow
def test_only_attacks_without_gradients_are_run(onnx: Path) -> None:
    with pytest.raises(InputError, match=r"quick@1 attacks by gradients .*quick-black-box@1"):
        robvit.evaluate(onnx, "sample", protocol="quick@1", limit=2)
    with pytest.raises(InputError, match=r"pgd needs gradients, mini\.onnx is a black box; take square"):
        robvit.attack(onnx, "sample", limit=2)
    record = robvit.evaluate(onnx, "sample", protocol=Protocol(**TINY), limit=4)
    assert any("no white-box claim can be made" in note for note in record.notes)
    assert record.attacks()[0].backward == 0
    moved = robvit.attack(onnx, "sample", surrogate="robvit-mini", settings={"steps": 2}, limit=4)
    assert moved.attacks()[0].surrogate == "robvit-mini"


@pytest.mark.slow
def test_a_review_of_a_black_box_makes_no_white_box_claim(onnx: Path, tmp_path: Path) -> None:
    made = robvit.review(onnx, "sample", protocol=Protocol(**TINY), out=tmp_path / "out", limit=6)
    assert "No claim is made about attackers who have the model" in made.to_paste()
    assert "no white-box claim" in made.believable
    assert {one.status for one in made.diagnosis.findings} == {"green", "skipped"}
    assert ("NIST AI 100-2 E2025", "NISTAML.025", "Black-box Evasion") in made.terms
    assert [term for term in made.terms if "White-Box" in term[2]] == []
    text = (tmp_path / "out" / "review.md").read_text()
    assert made.model_sha256 in text
    for name in ("review.md", "report.html", "junit.xml", "review.sarif"):
        assert str(onnx.parent) not in (tmp_path / "out" / name).read_text()


def test_a_check_of_a_black_box_asks_for_answers_only(onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robvit.checking.BLACK_BOX", Protocol(**TINY))
    record = check(onnx, "sample", limit=4)
    assert [(t.attack, t.backward) for t in record.attacks()] == [("square", 0)]
    assert all("robvit.load opens" in row[-1] for row in record.tables[0].rows)


def test_the_command_refuses_a_file_that_is_not_there_at_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["review", str(tmp_path / "no.onnx"), "sample"])
    assert "no file at" in str(done.exception)
    (tmp_path / "there.onnx").write_bytes(b"no graph")
    words = ["evaluate", str(tmp_path / "there.onnx"), "sample"]
    assert "onnxruntime cannot open there.onnx" in str(CliRunner().invoke(app, words).exception)
    wrong = CliRunner().invoke(app, [*words, "--normalise", "0.5"])
    assert "imagenet, none or MEAN/STD" in str(wrong.exception)
    robust = CliRunner().invoke(app, ["robustify", str(tmp_path / "there.onnx"), "sample"])
    assert "ONNX and TorchScript files are for" in str(robust.exception)


def test_a_missing_onnxruntime_is_named_with_its_remedy(onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install 'robvit\[onnx\]'"):
        open_classifier(onnx)


@pytest.mark.slow
def test_foreign_onnx_of_fixed_batches_with_channels_last_is_asked_in_its_own_way(tmp_path: Path) -> None:
    class Last(Ten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.permute(0, 3, 1, 2))

    net, path = Last().eval(), tmp_path / "last.onnx"
    torch.onnx.export(net, (torch.zeros(2, 8, 8, 3),), path, verbose=False, input_names=["x"])
    with pytest.raises(InputError, match=r"nothing tells how last\.onnx wants its pixels normalised"):
        open_classifier(path)
    box, x = open_classifier(path, normalise=((0.5,) * 3, (0.5,) * 3)), torch.rand(3, 3, 8, 8)
    assert box.size == 8
    torch.testing.assert_close(box.net(x), net(((x - 0.5) / 0.5).permute(0, 2, 3, 1)).detach())


def test_torchscript_answers_without_gradients(tmp_path: Path) -> None:
    net = Ten()
    for path in (scripted(net, tmp_path / "net.pt"), scripted(net, tmp_path / "net.torchscript")):
        box = open_classifier(path, img_size=8, normalise="none")
        x = torch.rand(2, 3, 8, 8, requires_grad=True)
        answer = box.net(x)
        torch.testing.assert_close(answer, net(x).detach())
        assert not answer.requires_grad
        assert model_facts(box)["access"] == "answers only (TorchScript)"


def test_traced_transformers_can_be_opened(tmp_path: Path) -> None:
    net = robvit.load("robvit-mini").net.eval()
    torch.jit.trace(net, torch.zeros(2, 3, 32, 32), check_trace=False).save(tmp_path / "vit.pt")
    box = open_classifier(tmp_path / "vit.pt", img_size=32, normalise="none")
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(box.net(x), net(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_program_that_fails_on_images_of_another_size_says_so(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    box = open_classifier(scripted(net, tmp_path / "net.pt"), normalise="none")
    with pytest.raises(InputError, match=r"TorchScript file fails on .* of 32x32 pixels.*--img-size"):
        robvit.evaluate(box, open_data("sample", limit=2), protocol=Protocol.model_validate(TINY))


def test_torchscript_that_touches_files_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scripted(Writes(), tmp_path / "writes.pt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="calls from_file, which may do more than compute"):
        open_classifier(path, img_size=8, normalise="none")
    assert not (tmp_path / "overwritten.bin").exists()


@pytest.mark.parametrize(
    "line",
    [
        'x.save("f")',
        'ops.aten.save(x, "f")',
        'getattr(torch, "from_file")("f")',
        "getattr(torch, name)",
        "torch._values_copy(x)",
        "__torch__.torch.classes.quantized.Conv2dPackedParamsBase(x)",
    ],
)
def test_programs_that_hide_what_they_call_are_refused(line: str, tmp_path: Path) -> None:
    path, packed = scripted(Ten(), tmp_path / "net.pt"), io.BytesIO()
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(packed, "w") as fresh:
        for info in given.infolist():
            fresh.writestr(info.filename, given.read(info))
        fresh.writestr("net/code/__torch__/more.py", f"def more(x):\n  return {line}\n")
    path.write_bytes(packed.getvalue())
    with pytest.raises(InputError, match="so it is not opened"):
        open_classifier(path, img_size=8, normalise="none")


class Expects(nn.Module):
    """A sound network behind the inverse of ImageNet's normalisation: it expects normalised pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = robvit.load("robvit-mini")
        self.pretrained_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(self.pretrained_cfg[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
        logits: torch.Tensor = self.net((x * std + mean).clamp(0, 1))
        return logits


@pytest.mark.slow
def test_pixels_that_are_not_normalised_as_the_model_expects_are_told() -> None:
    images = open_data("sample", limit=24)
    raw = open_classifier(Expects(), img_size=32)
    found = normalisation(raw, images)
    assert found is not None
    assert "ImageNet's" in found.evidence
    assert "Doubtful normalisation" in raw.doubt
    record = robvit.evaluate(raw, images, protocol="clean@1", limit=4)
    assert raw.doubt in record.notes
    mended = open_classifier(Expects(), img_size=32, normalise="imagenet")
    assert normalisation(mended, images) is None
    assert mended.doubt == ""
    assert normalisation(open_classifier("robvit-mini"), images) is None
