"""What secret tokens grow from: 256 bits of the system's randomness for each use, stretched by SHAKE-256.

A generator of torch's takes 32 bits of its seed on the CPU, so all of its starts can be searched in minutes.
Here the start of the tokens, the order of the images and the key's name have secrets of their own, so that
whatever is found out of one says nothing of another.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from robvit.errors import InputError
from robvit.files import parse_json, read_text, written_whole

BYTES = 32
FILE = "secret"
OLD_FILE = "seed"  # of runs that were begun when a seed of 62 bits was drawn


def stretched(secret: bytes, purpose: str, size: int) -> bytes:
    """So many bytes that follow from a secret and what they are for, and tell nothing of either."""
    label = purpose.encode()
    # Lengths before contents: no two pairs of purpose and secret are the same message.
    message = b"robvit" + len(label).to_bytes(4, "big") + label + len(secret).to_bytes(4, "big") + secret
    return hashlib.shake_256(message).digest(size)


def uniform(secret: bytes, purpose: str, count: int) -> np.ndarray:
    """Numbers (count,) in the open interval (0, 1), evenly spread, of 53 bits each."""
    words = np.frombuffer(stretched(secret, purpose, 8 * count), dtype="<u8")
    return ((words >> 11).astype(np.float64) + 0.5) * 2.0**-53


def normal(secret: bytes, purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Normal numbers of this shape by Box and Muller's method, computed in double precision."""
    count = math.prod(shape)
    radius, angle = np.split(uniform(secret, purpose, 2 * count), 2)
    values = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def permutation(secret: bytes, purpose: str, count: int) -> list[int]:
    """The numbers 0 to count - 1 in an order of their own: that of as many draws of 64 bits."""
    draws = np.frombuffer(stretched(secret, purpose, 8 * count), dtype="<u8")
    order: list[int] = np.argsort(draws, kind="stable").tolist()
    return order


@dataclass(frozen=True, repr=False)
class TokenSecret:
    """Three secrets: of the start of the tokens, of the order of the images, and of the key's name."""

    start: bytes
    order: bytes
    name: bytes

    @classmethod
    def draw(cls) -> TokenSecret:
        """New ones, from the system's randomness."""
        return cls(*(secrets.token_bytes(BYTES) for _ in fields(cls)))

    @classmethod
    def kept_in(cls, folder: Path | None) -> TokenSecret:
        """New ones; a run started again in a folder finds those it drew, worth as much as its tokens."""
        if folder is None:
            return cls.draw()
        place = folder / FILE
        if not place.exists():
            if (folder / OLD_FILE).exists():
                raise InputError(
                    f"{folder} holds a run whose seed was drawn by an older robvit and can be found by "
                    f"search; choose another folder, or remove this one"
                )
            drawn = cls.draw()
            with written_whole(place, mode=0o600) as aside:
                text = json.dumps({one.name: getattr(drawn, one.name).hex() for one in fields(cls)})
                aside.write_text(text + "\n", encoding="ascii")
        return cls._read(place)

    @classmethod
    def _read(cls, place: Path) -> TokenSecret:
        held = parse_json(read_text(place, "a secret"), place, "a secret")
        try:
            parts = [bytes.fromhex(held[one.name]) for one in fields(cls)]
        except (KeyError, TypeError, ValueError):
            parts = []
        if len(parts) != len(fields(cls)) or any(len(part) != BYTES for part in parts):
            raise InputError(f"{place} is damaged; remove the folder to start anew with a new secret")
        return cls(*parts)

    def member(self, number: int) -> TokenSecret:
        """The secrets of one set of a pool; neither these nor another set's follow from them."""
        purpose = f"set {number}"
        return TokenSecret(*(stretched(getattr(self, one.name), purpose, BYTES) for one in fields(self)))

    @property
    def salt(self) -> str:
        """What makes a checksum of the tokens one that nobody else can compute."""
        return stretched(self.name, "salt", 16).hex()

    def digest(self) -> str:
        """Names the secret in the private state of a training, without telling it."""
        return stretched(b"".join(getattr(self, one.name) for one in fields(self)), "state", 16).hex()
