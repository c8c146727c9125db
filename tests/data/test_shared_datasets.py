"""Several processes that need the same file, the mean corruption error, and an image's own mIoU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from robvit.data import CORRUPTIONS, IGNORE
from robvit.errors import InputError
from robvit.evaluation.corruptions import ALEXNET_ERRORS, corruption_errors, mean_corruption_error
from robvit.evaluation.masks import image_miou, pixel_counts

FETCH = """
import sys, time
from pathlib import Path
from robvit.files import written_whole
from robvit.locks import one_at_a_time
goal, log = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with one_at_a_time(goal):
    if not goal.exists():
        with log.open("a") as file:
            file.write("fetched\\n")
        time.sleep(0.5)
        with written_whole(goal) as aside:
            aside.write_text("whole")
assert goal.read_text() == "whole"
"""


def test_one_of_several_processes_fetches(tmp_path: Path) -> None:
    goal, log = tmp_path / "cache" / "weights", tmp_path / "log"
    command = [sys.executable, "-c", FETCH, str(goal), str(log)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:  # all are there before any begins
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert log.read_text() == "fetched\n"
    assert [path.name for path in goal.parent.iterdir()] == ["weights"]


def test_mean_corruption_error() -> None:
    assert list(ALEXNET_ERRORS) == [entry.name for entry in CORRUPTIONS]
    alexnet = {name: [error] * 5 for name, error in ALEXNET_ERRORS.items()}
    assert mean_corruption_error(alexnet) == pytest.approx(1)
    alexnet["fog"] = [0.0, 0.0, 0.0, 0.0, 0.819]
    assert corruption_errors(alexnet)["fog"] == pytest.approx(0.2)
    assert mean_corruption_error(alexnet) == pytest.approx(1 - 0.8 / 15)
    with pytest.raises(InputError, match=r"fog in 0\.\.1"):
        mean_corruption_error({**alexnet, "fog": [82.0]})
    with pytest.raises(InputError, match="missing or unknown: fog"):
        mean_corruption_error({name: alexnet[name] for name in alexnet if name != "fog"})


def test_the_mean_iou_of_one_image() -> None:
    masks = torch.tensor([[[0, 0, 1, 1]], [[2, 2, IGNORE, 2]], [[IGNORE] * 4]])
    seen = torch.tensor([[[0, 1, 1, 1]], [[2, 2, 0, 2]], [[0, 1, 2, 0]]])
    output = torch.nn.functional.one_hot(seen, 3).permute(0, 3, 1, 2).float()
    each = image_miou(pixel_counts(output.argmax(1), masks, 3))
    assert each.tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, 1.0, 1.0])
