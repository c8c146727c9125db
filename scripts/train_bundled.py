"""Train the two bundled models on CIFAR-10: `robvit-mini` and `robvit-mini-robust`.

    robvit data cifar10
    python scripts/train_bundled.py mini                          # 75 minutes on one CPU core
    python scripts/train_bundled.py mini-robust --stop-after 6    # an hour

The best checkpoint is chosen on 2,000 training images that are held out; the laboratory
looks at the test set (`bundled-mini` in results/queue.yaml). A killed run goes on after its last whole epoch
and ends with the same weights, because every epoch has a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from timm.utils import ModelEmaV3

import robvit.backbones.mini as mini

EPS = 8 / 255
HELD_OUT = 2000
SETTINGS = {
    "mini": {"epochs": 14, "batch": 128, "lr": 1.5e-3, "weight_decay": 0.05, "smoothing": 0.1},
    "mini-robust": {"epochs": 10, "batch": 128, "lr": 1.5e-3, "weight_decay": 0.05, "smoothing": 0.0},
}
EPS_WARMUP = 0.3  # share of the robust run over which the budget grows to its full size


class Classifier(torch.nn.Module):
    """The network behind its normalisation: pixels in [0,1] to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = timm.create_model("robvit_mini")
        self.register_buffer("mean", torch.tensor(mini.CIFAR_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(mini.CIFAR_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vit((x - self.mean) / self.std)


def augment(images: torch.Tensor, seeded: torch.Generator) -> torch.Tensor:
    """Pad by four, crop, flip: uint8 (B 3 32 32) to float in [0,1]."""
    count = len(images)
    padded = F.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, count, 1), generator=seeded)
    rows = top + torch.arange(32)
    columns = left + torch.arange(32)
    flip = torch.rand(count, generator=seeded) < 0.5
    columns[flip] = columns[flip].flip(1)
    index = torch.arange(count).view(-1, 1, 1)
    cropped = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2).float() / 255


def n_fgsm(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, eps: float, seeded: torch.Generator
) -> torch.Tensor:
    """One signed step from strong noise (N-FGSM, 2202.01181): cheap, and it does not collapse."""
    noise = (torch.rand(x.shape, generator=seeded) * 2 - 1) * 2 * eps
    start = (x + noise).requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(start), y), start)
    return (start + eps * gradient.sign()).detach().clamp(0, 1)


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return sum(
        int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500), strict=True)
    ) / len(x)


def pgd_accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 10) -> float:
    parts = []
    for a, b in zip(x.split(250), y.split(250), strict=True):
        adv = a.clone()
        for _ in range(steps):
            adv.requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(adv), b), adv)
            adv = (adv.detach() + 2 / 255 * gradient.sign()).clamp(a - EPS, a + EPS).clamp(0, 1)
        parts.append(adv.detach())
    return accuracy(model, torch.cat(parts), y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=SETTINGS)
    parser.add_argument("--data", type=Path, default=Path.home() / ".cache/robvit/data/cifar10")
    parser.add_argument("--out", type=Path, default=Path("runs/bundled"))
    parser.add_argument("--stop-after", type=int, help="end after so many epochs of the schedule")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = SETTINGS[args.which]
    robust = args.which == "mini-robust"
    out = args.out / args.which
    out.mkdir(parents=True, exist_ok=True)

    data = load_file(args.data / "train.safetensors")
    x, y = data["images"], data["labels"].long()
    x_val, y_val = x[-HELD_OUT:].float() / 255, y[-HELD_OUT:]
    x, y = x[:-HELD_OUT], y[:-HELD_OUT]

    torch.manual_seed(0)
    model = Classifier()
    ema = ModelEmaV3(model, decay=0.999, use_warmup=True, warmup_power=0.8)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": settings["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=settings["lr"],
    )
    per_epoch = len(x) // settings["batch"]
    total = settings["epochs"] * per_epoch

    def rate(step: int) -> float:
        warm = per_epoch
        return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / total))

    first, best = 0, -1.0
    state_file = out / "state.pt"
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        ema.module.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"])
        first, best = state["epoch"], state["best"]
        print(f"resuming after epoch {first}")

    for epoch in range(first, args.stop_after or settings["epochs"]):
        seeded = torch.Generator().manual_seed(1000 + epoch)
        order = torch.randperm(len(x), generator=seeded)
        model.train()
        start, loss_sum = time.time(), 0.0
        for i in range(per_epoch):
            step = epoch * per_epoch + i
            for group in optimizer.param_groups:
                group["lr"] = settings["lr"] * rate(step)
            pick = order[i * settings["batch"] : (i + 1) * settings["batch"]]
            batch, labels = augment(x[pick], seeded), y[pick]
            if robust:
                eps = EPS * min(1.0, step / (EPS_WARMUP * total))
                batch = n_fgsm(model, batch, labels, eps, seeded)
            loss = F.cross_entropy(model(batch), labels, label_smoothing=settings["smoothing"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ema.update(model, step=step)
            loss_sum += loss.item()
            if i % 50 == 49:
                speed = (i + 1) * settings["batch"] / (time.time() - start)
                print(
                    f"epoch {epoch + 1} step {i + 1}/{per_epoch} loss {loss_sum / (i + 1):.3f} {speed:.0f}/s",
                    flush=True,
                )
        ema.module.eval()
        clean = accuracy(ema.module, x_val, y_val)
        attacked = pgd_accuracy(ema.module, x_val[:1000], y_val[:1000]) if robust else None
        score = attacked if attacked is not None else clean
        line = {"epoch": epoch + 1, "loss": loss_sum / per_epoch, "val_clean": clean, "val_pgd10": attacked}
        line["seconds"] = round(time.time() - start)
        print(json.dumps(line), flush=True)
        with (out / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        if score > best:
            best = score
            save_file(ema.module.vit.state_dict(), out / "best.safetensors")
        torch.save(
            {
                "model": model.state_dict(),
                "ema": ema.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
                "best": best,
            },
            state_file.with_suffix(".tmp"),
        )
        state_file.with_suffix(".tmp").rename(state_file)


if __name__ == "__main__":
    main()
