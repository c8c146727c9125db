"""Subsets that are drawn by a seed, class by class, and mean the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush


def balanced_order(
    names: Sequence[str],
    labels: Sequence[int],
    seed: int,
    usable: Callable[[int], bool] = lambda index: True,
) -> Iterator[int]:
    """All usable indices in a seeded order of which every beginning is as class-balanced as can be.

    Images are ranked by a hash of their own name, so that a smaller limit is the beginning of a
    larger one, and the choice depends neither on a library's generator nor on the other files. An
    image that is not usable gives its turn to the next of its class.
    """
    waiting: dict[int, list[tuple[bytes, int]]] = {}
    for index, (name, label) in enumerate(zip(names, labels, strict=True)):
        key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        waiting.setdefault(label, []).append((key, index))
    for queue in waiting.values():
        queue.sort(reverse=True)  # the next one is popped off the end
    turns = [(0, *queue.pop(), label) for label, queue in waiting.items()]
    heapify(turns)
    while turns:
        turn, _, index, label = heappop(turns)
        if good := usable(index):
            yield index
        if waiting[label]:
            heappush(turns, (turn + good, *waiting[label].pop(), label))


def name_seed(name: str) -> int:
    """A seed that belongs to an image's name, whatever the other images are."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
