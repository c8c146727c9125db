"""A Python script that does what the playground just did."""

from __future__ import annotations

from robvit.app.models import BUNDLED, KNOWN, OFF, PlaygroundModel
from robvit.app.request import AttackRequest
from robvit.backbones.heads import FeatureHead


def python_script(model: PlaygroundModel, request: AttackRequest) -> str:
    """A script that makes the same adversarial image; files stand under the names they have on the page."""
    own = [] if model.name in BUNDLED else [f"img_size={model.size}"]
    if isinstance(model.undefended.head, FeatureHead):
        own.append('head="head.safetensors"')
    view = ".features" if request.on_features else ""
    attacked = "hardened" if request.tokens == KNOWN else "model"
    judged = "model" if request.tokens == OFF else "hardened"
    settings = "".join(f", {name}={value!r}" for name, value in request.settings.items())
    script = ["import robvit", "from PIL import Image"]
    if request.image.name:
        script += ["from robvit.data import open_data"]
        image = f'x, _ = open_data("sample", subset=["{request.image.name}"], size={model.size}).tensors()'
    else:
        script += ["from robvit.data.decode import read_image"]
        image = 'x = read_image("clean.png")[None] / 255  # the clean image, downloaded from the page'
    script += ["", f"model = robvit.load({', '.join([repr(model.name), *own])})".replace("'", '"')]
    if request.tokens != OFF:
        script += [
            f'hardened = robvit.load({", ".join([repr(model.name), *own])}, tokens="tokens.safetensors")'
        ]
    labels = "None" if request.on_features else "y"
    script += [image]
    if not request.on_features:
        script += [f"y = {attacked}(x).argmax(1)  # the attack drives the model away from what it says now"]
    script += [
        f'threat = robvit.Threat("linf", {request.eps} / 255)',
        "outcome = robvit.attacks.run(",
        f'    "{request.attack}", {attacked}{view}, x, {labels}, threat,',
        f"    victim={judged}{view}, eight_bit=True{settings},",
        ")",
        "pixels = (outcome.adv[0] * 255).round().byte().permute(1, 2, 0)",
        'Image.fromarray(pixels.numpy()).save("adversarial.png")',
    ]
    return "\n".join(line.replace("'", '"') for line in script) + "\n"
