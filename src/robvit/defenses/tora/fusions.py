"""How two adapters are fused: where the softmax is taken (the slides' figure (b)), a few lines each.

Queries come from the block's output, keys from the adapters' outputs, values from what the adapters change.
A fusion gives, for every token, what is added to it, and the accuracy adapter's share in that: its gate.

Legend for shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Fused = tuple[torch.Tensor, torch.Tensor]  # what is added (B T D), and the accuracy adapter's gate (B T)
# From a query (B T D), and keys and values (B T D) of the accuracy and the robustness adapter.
Fuse = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]], Fused]


def over_adapters(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Fused:
    """Softmax over the two adapters for each pair of tokens: the slides' "adapter-wise".

    Such gates alone sum to one for each pair, so that every token would get the same mean over all tokens.
    Pairs are therefore weighed by a softmax of their mean score over tokens; a token keeps the mean of its
    own two values, and the pairs decide how far it leans to one of them. One product serves both values.
    """
    first, second = (query @ key.transpose(1, 2) for key in keys)
    gate = torch.sigmoid(first - second)
    near = ((first + second) / 2).softmax(-1)
    leaning = (near * (gate - 0.5)) @ (values[0] - values[1])
    return (values[0] + values[1]) / 2 + leaning, (near * gate).sum(-1)


def tokens_then_adapters(
    query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> Fused:
    """Softmax over tokens for each adapter, then over the adapters by the score that each of them found."""
    scores = [query @ key.transpose(1, 2) for key in keys]
    near = [score.softmax(-1) for score in scores]
    found = [(weight * score).sum(-1) for weight, score in zip(near, scores, strict=True)]
    gate = torch.sigmoid(found[0] - found[1])
    added = [weight @ value for weight, value in zip(near, values, strict=True)]
    return torch.lerp(added[1], added[0], gate[..., None]), gate


def over_both(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Fused:
    """One softmax over the tokens of both adapters."""
    weight = (query @ torch.cat(list(keys), dim=1).transpose(1, 2)).softmax(-1)
    return weight @ torch.cat(list(values), dim=1), weight[..., : query.shape[1]].sum(-1)


def own_token(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Fused:
    """Every token chooses for itself, as AdapterFusion does."""
    first, second = ((query * key).sum(-1) for key in keys)
    gate = torch.sigmoid(first - second)
    return torch.lerp(values[1], values[0], gate[..., None]), gate


FUSIONS: dict[str, Fuse] = {
    "adapters": over_adapters,
    "tokens": tokens_then_adapters,
    "both": over_both,
    "own": own_token,
}
