"""Models compiled by torch.compile: the same numbers up to rounding, in fewer and larger kernels."""

from __future__ import annotations

import torch

from robvit.attacks.core import Model
from robvit.errors import Unsupported
from robvit.registry import unknown


def check_compiler(name: str) -> None:
    """Refuse a name that torch.compile does not know."""
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise unknown("compiler", name, known)


class Compiled:
    """A model compiled by one of torch's backends, such as "inductor"; the first passes take a while."""

    def __init__(self, model: Model, backend: str) -> None:
        check_compiler(backend)
        self.__wrapped__ = model
        self.backend = backend
        self._compiled = torch.compile(lambda x: model(x), backend=backend)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        try:
            output: torch.Tensor = self._compiled(x)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise Unsupported(
                f"{self.backend} can't compile this model: {reason} ...; inductor needs a C++ compiler and, "
                "on a GPU, triton; without compiling the result is the same"
            ) from error
        return output
