"""What a network sees of an image when a pair of windows is hidden, as a certificate against patches asks it.

Legend for shapes: B batch, V views, P patches, N of them seen, D width.
"""

from __future__ import annotations

import torch

from robvit.attacks.core import per_image_uniform
from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import cover


class Hiding:
    """Views of images without two windows of those that cover every patch of so many pixels.

    Only pairs that hide the most are drawn, which are most of them: they leave as many tokens, so that images
    with different ones share a pass.
    """

    def __init__(self, model: Model, patch: int, windows: int) -> None:
        covered = cover(model.input_size, TokenDropping(model).token, patch, windows)
        self.patches = covered.grid[0] * covered.grid[1]
        kept = [covered.kept(*pair) for pair in covered.pairs]
        self.views = torch.tensor([one for one in kept if len(one) == len(kept[0])])  # (V N)

    def places(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        """The patch tokens (B N) that are seen of each image, by its content and the seed."""
        drawn = per_image_uniform(x, seed, "hide", 1)[:, 0] * len(self.views)
        return self.views.to(x.device)[drawn.long()]

    def seen(self, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Features of whole images (B 1+P D) at the class token and these places: (B 1+N D)."""
        first = features.shape[1] - self.patches  # 1, or 0 where there is no class token
        rows = (first + places)[..., None].expand(-1, -1, features.shape[2])
        return torch.cat((features[:, :first], features.gather(1, rows)), dim=1)
