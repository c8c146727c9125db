"""AAS-AT (Jain and Dutta, CVPR 2024): adversarial training in which attention scores are kept small.

Every few epochs the model's own scales are moved by the ascent of the attention-scaling attack, and kept:
they are buffers of the model, saved and loaded with it. A move takes one batch; all others train the weights
by any loss.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import reduce
from torch import nn

from robvit.attacks.scales import find_scales
from robvit.attention import attention_layers, keep_scales, kept_scales
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.record import Table
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import LOSSES, Loss, hard, make_loss


@LOSSES.add("aas_at")
class AasAt(Loss):
    """Another loss, `base`, on a model whose attention scales are moved every `every` epochs.

    In such an epoch the first `batches` batches move the scales, each by `steps` steps of the objective
    (`find_scales`) from a random point around the scales so far, and leave the weights as they are; the rest
    of the epoch trains. `beta` and `smoothing` are the base loss's.
    """

    moved: torch.Tensor
    moves = False  # whether the batch at hand moves scales
    epoch = 0

    def __init__(
        self,
        model: nn.Module,
        images: ImageDataset,
        *,
        base: str = "trades",
        beta: float | None = None,
        smoothing: float | None = None,
        every: int = 10,
        batches: int = 1,
        objective: str = "unit",
        space: str = "linear",
        steps: int = 10,
        step_size: float = 1.0,
        direction: str = "gradient",
    ) -> None:
        super().__init__()
        if every < 2 or batches < 1:
            raise InputError(f"expected every >= 2 epochs and batches >= 1, got {every} and {batches}")
        if kept_scales(model) is None:
            keep_scales(model, [1.0] * len(attention_layers(model)))
        given = {"beta": beta, "smoothing": smoothing}
        self.base = make_loss(base, model, images, {k: v for k, v in given.items() if v is not None})
        if not self.base.needs_classifier or not self.base.needs_labels:
            raise InputError(f"AAS-AT trains classifiers by losses such as trades or mart, got {base}")
        self.every, self.batches = every, batches
        self.ascent: dict[str, Any] = {
            "objective": objective,
            "space": space,
            "steps": steps,
            "step_size": step_size,
            "direction": direction,
        }
        self.register_buffer("moved", torch.zeros((), dtype=torch.long))
        # A row for each move: the epoch, where the ascent of the first process began, the scales ever after.
        self.path = torch.zeros(0, 1 + 2 * len(attention_layers(model)))

    def get_extra_state(self) -> torch.Tensor:
        """The path grows, which a buffer may not; it is resumed and kept with the buffers."""
        return self.path

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.path = state.cpu()

    def tables(self) -> list[Table]:
        """Every move of the scales: a training whose scales are 1 in the end may have had others between."""
        blocks = self.path.shape[1] // 2
        rows: list[list[Any]] = []
        for epoch, *scales in self.path.tolist():
            rows.append([int(epoch), "random start", *scales[:blocks]])
            rows.append([int(epoch), "after the ascent", *scales[blocks:]])
        columns = ["epoch", "scales", *(f"block {block + 1}" for block in range(blocks))]
        return [Table("Moves of the attention scales", columns, rows), *self.base.tables()]

    def trains(self, name: str) -> bool:
        return self.base.trains(name)

    def on_epoch(self, model: nn.Module, epoch: int) -> None:
        self.moved.zero_()
        self.base.on_epoch(model, epoch)

    def updates_weights(self, epoch: int) -> bool:
        """All batches but those that move scales; the first epoch moves none, so that weights learn first."""
        self.epoch = epoch
        self.moves = epoch > 0 and epoch % self.every == 0 and int(self.moved) < self.batches
        return not self.moves

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        if not self.moves:
            value: torch.Tensor = self.base(model, x, y, attack)
            return value
        if int(self.moved) < self.batches:  # else another part of the batch that moved them
            self._move(model, x, y, attack.seed)
            self.moved += 1
        return x.new_zeros(())

    def _move(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        """Other scales, from a search in which the model's own are what is searched for."""
        own = kept_scales(model)
        assert own is not None
        keep_scales(model, torch.ones_like(own))
        try:
            found = find_scales(model, [(x, hard(y))], begin=own.tolist(), seed=seed, **self.ascent)
            own = reduce(torch.tensor(found.values).to(own), "mean")  # processes see other images
            row = torch.tensor([self.epoch, *found.start, *own.tolist()])
            self.path = torch.cat([self.path, row[None]])
        finally:
            keep_scales(model, own)
