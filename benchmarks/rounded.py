"""Products in low precision on processors that have none: factors as they are, sums in fp32, rounded once.

That is what hardware with bf16 does. torch does the same without it, one number at a time, and takes a
hundred times as long; here fp32's own product serves, so that an attack in bf16 can be tried anywhere.
Results differ from hardware's by the order of the sums alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

LOW = (torch.bfloat16, torch.float16)
_ATEN = torch.ops.aten
PRODUCTS = (_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.convolution, _ATEN.convolution_backward)


class RoundedProducts(TorchDispatchMode):
    """Inside, products of low-precision numbers, forward and backward, are computed by fp32's kernels."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        low = {one.dtype for one in tree_leaves(args) if isinstance(one, torch.Tensor) and one.dtype in LOW}
        if func.overloadpacket not in PRODUCTS or not low:
            return func(*args, **(kwargs or {}))

        def cast(dtype: torch.dtype) -> Any:
            return lambda one: one.to(dtype) if isinstance(one, torch.Tensor) else one

        found = func(*tree_map(cast(torch.float32), args), **(kwargs or {}))
        return tree_map(cast(low.pop()), found)
