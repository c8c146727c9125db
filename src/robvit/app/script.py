"""The Python lines that do what the playground just did."""

from __future__ import annotations

from robvit.app.request import Order
from robvit.app.subjects import BUNDLED, KNOWN, OFF, Subject
from robvit.backbones.heads import FeatureHead


def lines(subject: Subject, order: Order) -> str:
    """A script that makes the same adversarial image; files stand under the names they have on the page."""
    own = [] if subject.name in BUNDLED else [f"img_size={subject.size}"]
    if isinstance(subject.bare.head, FeatureHead):
        own.append('head="head.safetensors"')
    view = ".features" if order.on_features else ""
    attacked = "hardened" if order.tokens == KNOWN else "model"
    judged = "model" if order.tokens == OFF else "hardened"
    settings = "".join(f", {name}={value!r}" for name, value in order.settings.items())
    script = ["import robvit", "from PIL import Image"]
    if order.image.name:
        script += ["from robvit.data import open_data"]
        image = f'x, _ = open_data("sample", subset=["{order.image.name}"], size={subject.size}).arrays()'
    else:
        script += ["from robvit.data.decode import read_image"]
        image = 'x = read_image("clean.png")[None] / 255  # the clean image, downloaded from the page'
    script += ["", f"model = robvit.load({', '.join([repr(subject.name), *own])})".replace("'", '"')]
    if order.tokens != OFF:
        script += [
            f'hardened = robvit.load({", ".join([repr(subject.name), *own])}, tokens="tokens.safetensors")'
        ]
    labels = "None" if order.on_features else "y"
    script += [image]
    if not order.on_features:
        script += [f"y = {attacked}(x).argmax(1)  # the attack drives the model away from what it says now"]
    script += [
        f'threat = robvit.Threat("linf", {order.eps} / 255)',
        "outcome = robvit.attacks.run(",
        f'    "{order.attack}", {attacked}{view}, x, {labels}, threat,',
        f"    victim={judged}{view}, eight_bit=True{settings},",
        ")",
        "pixels = (outcome.adv[0] * 255).round().byte().permute(1, 2, 0)",
        'Image.fromarray(pixels.numpy()).save("adversarial.png")',
    ]
    return "\n".join(line.replace("'", '"') for line in script) + "\n"
