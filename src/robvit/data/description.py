"""What there is to say about a set of images, for people."""

from __future__ import annotations

from collections import Counter

from robvit.data.dataset import ImageDataset


def describe(images: ImageDataset) -> list[tuple[str, str]]:
    """What there is to say about a set, line by line."""
    facts = [("images", f"{len(images):,}"), ("skipped", f"{len(images.skipped):,}")]
    if images.kind == "labels":
        counts = Counter(images.labels)
        most, least = max(counts.values()), min(counts.values())
        spread = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        facts.append(("classes", f"{len(counts):,} of {len(images.classes):,}; images a class: {spread}"))
    else:
        facts.append(("labels", f"masks of {len(images.classes)} classes" if images.classes else "none"))
    if images.class_map is not None:
        facts.append(("class map", f"{len(images.class_map)} of the model's classes are compared"))
    if images.classes:
        more = " ..." if len(images.classes) > 12 else ""
        first_words = [name.split(",")[0] for name in images.classes[:12]]  # ImageNet lists synonyms
        facts.append(("names", ", ".join(first_words) + more))
    sizes = Counter(images.shape(i) for i in range(len(images)))
    common = ", ".join(f"{width} x {height} ({count:,})" for (height, width), count in sizes.most_common(3))
    facts.append(("sizes", common + (f" and {len(sizes) - 3:,} others" if len(sizes) > 3 else "")))
    if images.corruption:
        facts.append(("corruption", images.corruption))
    return [*facts, ("digest", images.digest())]
