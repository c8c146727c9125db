"""The model and the images of a benchmark, from its command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from robvit.attacks import misclassified
from robvit.budget import parse_number
from robvit.data import ImageDataset, open_data
from robvit.evaluation.classifiers import Classifier, aligned, check_fit, fitted, open_classifier
from robvit.threat import Threat

USUAL = {"linf": 8 / 255, "l2": 0.5, "l1": 12.0}


class Opened(NamedTuple):
    """A classifier, its network in eval mode, the images at its size, and the budget."""

    classifier: Classifier
    net: nn.Module
    images: ImageDataset
    threat: Threat


def add_options(parser: argparse.ArgumentParser, count: int) -> None:
    """The options that name a model's parts, images and a budget."""
    parser.add_argument("--head", type=Path, help="a head from robvit train head")
    parser.add_argument("--lora", type=Path, help="factors from robvit robustify --method lora")
    parser.add_argument("--img-size", type=int, help="side of the images")
    parser.add_argument("--resize", default="squash", choices=["squash", "crop"])
    parser.add_argument("--split", help="the split to test on; test or validation if left out")
    parser.add_argument("--count", type=int, default=count, help="images, before the wrong ones are left out")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the first")
    parser.add_argument("--norm", default="linf", choices=USUAL)
    parser.add_argument("--eps", type=parse_number, help="8/255, 0.5 or 12 if left out")
    parser.add_argument("--threads", type=int, default=1)


def opened(options: argparse.Namespace) -> Opened:
    """What the options name; computed with their number of threads from now on."""
    torch.set_num_threads(options.threads)
    classifier = open_classifier(
        options.model, head=options.head, lora=options.lora, img_size=options.img_size
    )
    images = open_data(options.data, split=options.split, limit=options.skip + options.count)
    images = images.take(range(options.skip, len(images)))
    images = aligned(classifier, images.resized(classifier.size or images.size, options.resize))
    check_fit(classifier, images)
    net = fitted(classifier.net, images).eval().requires_grad_(False)
    eps = USUAL[options.norm] if options.eps is None else options.eps
    return Opened(classifier, net, images, Threat(options.norm, eps))


def correct_ones(net: nn.Module, images: ImageDataset, batch: int) -> ImageDataset:
    """The images that the network classifies rightly."""
    kept: list[int] = []
    with torch.no_grad():
        for first in range(0, len(images), batch):
            x, y = images.take(range(first, min(first + batch, len(images)))).tensors()
            kept += (first + (~misclassified(net(x), y)).nonzero()[:, 0]).tolist()
    return images.take(kept)
