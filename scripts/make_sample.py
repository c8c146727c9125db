"""Make src/robvit/data/sample.safetensors, the bundled images, from the full CIFAR-10.

    robvit data cifar10
    python scripts/make_sample.py

The training split is drawn from CIFAR-10's training set, the test split from its test set, each
balanced over the classes, by the same seeded draw that `limit=` uses; so the file can be made again
bit for bit. `*_rows` are the images' places in the full set.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from robvit.data import open_data
from robvit.files import sha256, written_whole

COUNT = 1000
OUT = Path(__file__).parent.parent / "src/robvit/data/sample.safetensors"


def main() -> None:
    tensors = {}
    for split in ("train", "test"):
        part = open_data("cifar10", split=split, limit=COUNT)
        rows = torch.tensor(part.indices)
        tensors[f"{split}_images"] = part.listing.images[rows]
        tensors[f"{split}_labels"] = torch.tensor(part.labels, dtype=torch.uint8)
        tensors[f"{split}_rows"] = rows.int()
    with written_whole(OUT) as aside:
        save_file(tensors, aside)
    print(f"{OUT}: {OUT.stat().st_size / 1e6:.2f} MB, SHA-256 {sha256(OUT)}")


if __name__ == "__main__":
    main()
