"""The model every other room works with: a timm network that takes pixels.

It normalises inside, gives tokens, features and logits, and carries what it is given: extra tokens, a head,
adapters. With none of them its logits are timm's, bit for bit. A model is never changed: `replace` gives a
twin on the same weights with other parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, cast

import torch
from timm.data.config import resolve_model_data_config
from torch import nn

from robvit.backbones.families import Extra, Family, Tokens, family_of
from robvit.backbones.fingerprint import facts, fingerprint, identity
from robvit.backbones.parts import Adapted, AnyTokens, TokenSource, by_layer
from robvit.backbones.trained_on import agreed_resize, resizes_of
from robvit.errors import InputError, Unsupported
from robvit.settings import check_layers

_KEEP: Any = object()  # in place of a part that `replace` leaves as it is


class Model(nn.Module):
    """A timm network on pixels: (B 3 H W) in [0,1] to logits (B K).

    A head is a module from final tokens and the image's size (rows, columns) to logits. Extra tokens
    (L R D) enter before the blocks in `layers`; for one layer they may also be (B R D). With a pool of
    tokens every call draws a set anew: the model is randomised, and whoever attacks it needs `eot`.
    """

    mean: torch.Tensor
    std: torch.Tensor
    extra: torch.Tensor | None

    def __init__(
        self,
        net: nn.Module,
        *,
        name: str = "",
        mean: Sequence[float] | torch.Tensor = (0.0, 0.0, 0.0),
        std: Sequence[float] | torch.Tensor = (1.0, 1.0, 1.0),
        head: nn.Module | None = None,
        tokens: AnyTokens = None,
        layers: Sequence[int] = (0,),
        adapters: Adapted | None = None,
        input_size: tuple[int, int] | None = None,
        original: str = "",
        salt: str = "",
        revision: str = "",
        learned_from: Set[str] = frozenset(),
        names: Sequence[str] = (),
        usual_resize: str = "",
        resizes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.revision = revision  # the commit of the hub's repository that the weights are from
        self.original_fingerprint = original  # of the weights it was tuned from, whose heads it takes
        self._input_size = input_size
        self.name = name or type(net).__name__
        self.family: Family = family_of(net)
        self.head = head
        self.adapters = adapters
        self._names = tuple(names)  # of the classes of the network's own classifier
        self.usual_resize = usual_resize  # how images become square where nothing that was trained says so
        self._resizes = {**(resizes or {}), **resizes_of(head=head, tokens=tokens, adapters=adapters)}
        self.resize = agreed_resize(self._resizes)
        self.register_buffer("mean", torch.as_tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.as_tensor(std).view(1, 3, 1, 1), persistent=False)
        source: Any = tokens
        self.pool: TokenSource | None = source if hasattr(source, "draw") else None
        for one in self.pool.sets if self.pool else ():
            self._placed(one.values, one.layers)
        # Of secret tokens: a checksum of theirs that everyone could compute would confirm a guess.
        sets = self.pool.sets if self.pool else [tokens]
        self._salt = salt or "".join(getattr(one, "salt", "") for one in sets)
        # The images that its tokens were learned from, as far as they say.
        self.learned_from = learned_from or {n for one in sets for n in getattr(one, "learned_from", ())}
        if self.pool is not None:
            source = None
        elif source is not None and not isinstance(source, torch.Tensor):
            source, layers = source.values, source.layers
        self._placed(source, layers)
        # A buffer that is not saved: secret tokens never leave through a state dict by accident.
        self.register_buffer("extra", source, persistent=False)
        self.layers = tuple(layers)

    def replace(
        self,
        *,
        tokens: AnyTokens = _KEEP,
        layers: Sequence[int] = (0,),
        head: nn.Module | None = _KEEP,
        adapters: Adapted | None = _KEEP,
        trade_off: float | None = None,
        name: str = _KEEP,
        original: str = _KEEP,
        usual_resize: str = _KEEP,
    ) -> Model:
        """A twin on the same weights, shared, with these parts in place of its own; what is left out stays.

        tokens: (L R D), for one layer also (B R D), a set that knows its layers, a pool of sets, or None
        layers: the blocks that tokens given as a plain tensor enter
        head: a module from final tokens and the image's size to logits, or None for the network's own
        adapters: trained parts between the blocks, or None
        trade_off: where the adapters stand, between accuracy (0) and robustness (1)
        name: what the twin is called
        original: the fingerprint of the weights that these were tuned from, whose heads they take
        usual_resize: how images become square where nothing that was trained says so
        """
        salt, learned_from = "", frozenset[str]()
        changed = {"tokens": tokens, "head": head, "adapters": adapters}
        kept = {what: how for what, how in self._resizes.items() if changed.get(what, _KEEP) is _KEEP}
        if tokens is _KEEP:
            tokens, layers = (self.extra, self.layers) if self.pool is None else (self.pool, layers)
            salt, learned_from = self._salt, frozenset(self.learned_from)
        parts = self.adapters if adapters is _KEEP else adapters
        if trade_off is not None:
            if parts is None:
                raise Unsupported(f"{self.name} has no adapters; load it with adapters=")
            parts = parts.at(trade_off)
        twin = Model(
            self.net,
            name=self.name if name is _KEEP else name,
            mean=self.mean,
            std=self.std,
            head=self.head if head is _KEEP else head,
            tokens=tokens,
            layers=layers,
            adapters=parts,
            input_size=self._input_size,
            original=self.original_fingerprint if original is _KEEP else original,
            salt=salt,
            revision=self.revision,
            learned_from=learned_from,
            names=self._names,
            usual_resize=self.usual_resize if usual_resize is _KEEP else usual_resize,
            resizes=kept,
        )
        return twin.train(self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B K); (B K H W) with a segmentation head."""
        if self.head is None and not self.hardened and self.adapters is None:
            return cast(torch.Tensor, self.net(self.normalise(x)))
        return self.logits(self.tokens(x), (x.shape[-2], x.shape[-1]))

    def features(
        self, x: torch.Tensor, extra: torch.Tensor | None = None, layers: Sequence[int] = (0,)
    ) -> torch.Tensor:
        """Class token and patch tokens (B 1+N D), nothing else; (B N D) where there is no class token."""
        return self.tokens(x, extra, layers).features()

    def features_and_logits(
        self, x: torch.Tensor, extra: torch.Tensor | None = None, layers: Sequence[int] = (0,)
    ) -> tuple[torch.Tensor, ...]:
        """Features (B 1+N D) and, where there are classes, logits (B K), of one pass with the same tokens."""
        if self.head is None and self.adapters is None and not self.family.takes_extra:
            return (self.features(x, extra, layers), *([self(x)] if self.classes else []))
        tokens = self.tokens(x, extra, layers)
        size = (x.shape[-2], x.shape[-1])
        return (tokens.features(), *([self.logits(tokens, size)] if self.classes else []))

    def tokens(
        self, x: torch.Tensor, extra: torch.Tensor | None = None, layers: Sequence[int] = (0,)
    ) -> Tokens:
        """Final tokens; `extra` (L R D) or (B R D) at `layers` takes the place of the model's own."""
        placed = self.placed() if extra is None else self._placed(extra, layers)
        return (self.adapters or self.family).tokens(self.net, self.normalise(x), placed)

    def placed(self) -> Extra:
        """The model's own extra tokens by layer; from a pool, a set drawn anew."""
        if self.pool is None:
            return self._placed(self.extra, self.layers)
        drawn = self.pool.draw()
        return self._placed(drawn.values, drawn.layers)

    def heads_apart(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The logits (B K) of each head of the adapters by name; their mean is the model's output."""
        return self._adapted.heads_apart(self.net, self.tokens(x))

    @property
    def trade_off(self) -> float:
        """Where adapters stand between accuracy (0) and robustness (1); `replace` moves it."""
        return self._adapted.trade_off

    @property
    def _adapted(self) -> Adapted:
        if self.adapters is None:
            raise Unsupported(f"{self.name} has no adapters; load it with adapters=")
        return self.adapters

    @property
    def hardened(self) -> bool:
        """Whether it carries extra tokens."""
        return self.extra is not None or self.pool is not None

    def logits(self, tokens: Tokens, size: tuple[int, int] | None = None) -> torch.Tensor:
        """Logits from final tokens, by the model's own head, its adapters' or timm's."""
        if self.head is not None:
            return cast(torch.Tensor, self.head(tokens, size or self.input_size))
        if self.adapters is not None:
            return self.adapters.logits(self.net, tokens)
        if self.family.takes_extra:
            net: Any = self.net
            return cast(torch.Tensor, net.forward_head(torch.cat((tokens.prefix, tokens.patch), dim=1)))
        raise Unsupported(f"{self.name} classifies its own feature map, not tokens; call model(x) instead")

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """Pixels to what the network was trained on; refuses images of the wrong size."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise InputError(f"images must be (B 3 H W), got {tuple(x.shape)}")
        if self.fixed_size and tuple(x.shape[-2:]) != self.input_size:
            (rows, columns), got = self.input_size, f"{x.shape[-2]}x{x.shape[-1]}"
            raise InputError(
                f"{self.name} was loaded for {rows}x{columns} images, got {got}; "
                f"resize them, or load it with img_size={x.shape[-1]}"
            )
        return (x - self.mean) / self.std

    @property
    def input_size(self) -> tuple[int, int]:
        """Rows and columns of the images it takes."""
        embed = getattr(self.net, "patch_embed", None)
        size = self._input_size or getattr(embed, "img_size", None)
        rows, columns = size or resolve_model_data_config(self.net)["input_size"][1:]
        return int(rows), int(columns)

    @property
    def fixed_size(self) -> bool:
        """Whether images of another size are refused; convolutions and XCiT take any."""
        return self.family.fixed_size and not getattr(self.net, "dynamic_img_size", False)

    @property
    def width(self) -> int:
        """D, the length of a final token."""
        if (width := getattr(self.net, "num_features", None)) is None:
            raise Unsupported(f"{type(self.net).__name__} has no num_features, so no known width of tokens")
        return int(width)

    @property
    def depth(self) -> int:
        """Before how many blocks extra tokens may enter."""
        return self.family.depth(self.net)

    @property
    def classes(self) -> int:
        """K, the number of classes; 0 for a bare feature extractor."""
        net: Any = self.net
        owner: Any = self.head if self.head is not None else self.adapters
        if owner is not None or hasattr(net, "num_classes"):
            return int(net.num_classes if owner is None else getattr(owner, "classes", 0))
        last = [part.out_features for part in net.modules() if isinstance(part, nn.Linear)]
        return last[-1] if last else 0  # torchvision and others do not say

    @property
    def class_names(self) -> list[str]:
        """What its classes are called, in their order; nothing where nobody told."""
        owner: Any = self.head if self.head is not None else self.adapters
        return list(self._names if owner is None else getattr(owner, "names", ()))

    @property
    def has_class_token(self) -> bool:
        """Whether features begin with a class token."""
        return getattr(self.net, "cls_token", None) is not None

    def fingerprint(self) -> str:
        """SHA-256 of the backbone's weights: the same at any input size, another for other weights."""
        return fingerprint(self.net)

    def identity(self) -> str:
        """SHA-256 of everything that decides the output: weights, positions, statistics, head and tokens.

        That of secret tokens is salted: it names them in records, and confirms no guess of them.
        """
        return identity(self, self._salt)

    def facts(self) -> dict[str, Any]:
        """What a record tells of the model: its name, and what decides its output."""
        return facts(self)

    def chosen_layers(self, layers: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The layers that tokens are to enter, in order; refuses those the network does not have."""
        if layers == "all":
            return tuple(range(self.depth))
        chosen = tuple(int(layer) for layer in layers)
        check_layers(chosen, self.depth, self.name)
        return chosen

    def _placed(self, extra: torch.Tensor | None, layers: Sequence[int]) -> Extra:
        """Each layer's own tokens, after checking that they fit this network."""
        if extra is None:
            return {}
        if not self.family.takes_extra:
            raise Unsupported(f"{self.name} cannot take extra tokens: {self.family.why_not}")
        return by_layer(extra, self.chosen_layers(layers), self.width, self.name)
