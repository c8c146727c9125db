"""Requests and results as HTML: every image is inside the page, so the server has no images to serve."""

from __future__ import annotations

import math
from html import escape

from robvit.app.compute import SWEEP_EPS
from robvit.app.request import AttackRequest, InputImage, PatchMap, Prediction, Result, Step, Sweep
from robvit.drawing.charts import svg_chart
from robvit.drawing.images import Pixels, data_url, encoded
from robvit.drawing.style import colour
from robvit.report.gallery import factor, views

SMALL = 128  # pixels a side up to which they are drawn as squares


def thumbnails(images: list[InputImage]) -> str:
    """A button for every image."""
    buttons = (
        f"<button type='button' data-index='{i}' title='Choose this {escape(image.label)}'>"
        f"{_image(image.png, image.label)}</button>"
        for i, image in enumerate(images)
    )
    return f"<div class='thumbs' role='group' aria-label='images to choose from'>{''.join(buttons)}</div>"


def chosen(image: InputImage) -> str:
    """The image that will be attacked."""
    return (
        f"<figure class='chosen'>{_image(image.png, image.label)}"
        f"<figcaption>chosen: {escape(image.label)}</figcaption></figure>"
    )


def step(now: Step, request: AttackRequest) -> str:
    """An attack that is running."""
    measure, trace = request.measure, [(float(i + 1), value) for i, value in enumerate(now.trace)]
    return (
        f"<p class='verdict busy' role='status'>Attacking: pass {now.passes} of about {now.expected}, "
        f"{escape(measure)} {now.trace[-1]:.2f}</p>"
        f"<progress max='{now.expected}' value='{now.passes}'></progress>"
        f"<div class='images'>{_figure(encoded(now.point), 'the point it just tried')}</div>"
        + chart({measure: trace}, "passes of the attack", measure, until=now.expected)
    )


def result(found: Result) -> str:
    """Everything about a finished attack."""
    clean, adversarial = found.item.clean, found.item.adversarial
    assert clean is not None
    assert adversarial is not None
    names = ["clean", "adversarial", f"difference ×{factor(found.item)}", "attention, clean"]
    names += ["attention, attacked"]
    shown = [encoded(view) for view in views(found.item) if view is not None]
    figures = "".join(_figure(file, name) for file, name in zip(shown, names, strict=False))
    measure, trace = found.request.measure, [(float(i + 1), value) for i, value in enumerate(found.trace)]
    return (
        _verdict(found)
        + f"<div class='images'>{figures}</div>"
        + _slider(clean, adversarial)
        + _downloads(clean, adversarial)
        + f"<div class='predictions'>{''.join(map(_prediction, found.predictions))}</div>"
        + _numbers(found)
        + chart({measure: trace}, "passes of the attack", measure)
    )


def patch_map(found: PatchMap) -> str:
    """Where a patch might succeed."""
    size = f"{found.side}×{found.side} pixels"
    text = f"No patch of {size} anywhere can change {found.label!r} behind double masking."
    if not found.certified:
        text = f"A patch of {size} might change {found.label!r} behind double masking: {found.note}."
    return (
        f"<p class='verdict {'good' if found.certified else 'busy'}' role='status'>{escape(text)}</p>"
        f"<div class='images'>{_figure(encoded(found.image), 'red: places that are not proven safe')}</div>"
        f"<p>{found.seconds:.1f} s</p>"
    )


def sweep(found: Sweep) -> str:
    """The measure at each budget so far."""
    return chart(found.lines, "ε in grey levels (1/255)", found.measure, until=SWEEP_EPS[-1])


def chart(lines: dict[str, list[tuple[float, float]]], x: str, y: str, *, until: float = 1.0) -> str:
    """Lines over x, at least `until`, from 0 (or less, for a cosine) to 1, with their names where several."""
    keys = "".join(
        f"<span style='--ink:{colour(number)}'>{escape(name)}</span>"
        for number, name in enumerate(lines)
        if len(lines) > 1
    )
    return (
        f"<figure class='chart'><figcaption>{escape(y)} <span class='keys'>{keys}</span></figcaption>"
        f"{svg_chart(lines, x, y, until=until)}</figure>"
    )


def _verdict(found: Result) -> str:
    last, tokens = found.predictions[-1], found.request.tokens
    who = {"off": "", "secret": " with secret tokens", "known": " with tokens known to the attacker"}[tokens]
    if not last.clean:
        text, kind = (
            f"The features of the model{who} moved to a cosine of {last.cosine[1]:.2f} with the clean ones.",
            "busy",
        )
    elif last.success:
        before, after = last.clean[0], last.attacked[0]
        text = f"The attack succeeded on the model{who}: {before[0]} ({before[1]:.0%}) "
        text += f"became {after[0]} ({after[1]:.0%})."
        kind = "bad"
    else:
        text = f"The attack failed on the model{who}: "
        text, kind = f"{text}still {last.attacked[0][0]} ({last.attacked[0][1]:.0%}).", "good"
    return f"<p class='verdict {kind}' role='status'>{escape(text)}</p>"


def _image(png: bytes, name: str) -> str:
    """An image whose pixels show if it is small; a photograph is drawn smooth."""
    width = int.from_bytes(png[16:20], "big")  # in the header of every PNG
    photo = " class='photo'" if width > SMALL else ""
    return f"<img{photo} src='{data_url(png)}' alt='{escape(name)}'>"


def _figure(file: bytes, name: str) -> str:
    return f"<figure>{_image(file, name)}<figcaption>{escape(name)}</figcaption></figure>"


def _slider(clean: Pixels, adversarial: Pixels) -> str:
    """Both images on top of each other, split by a slider."""
    return (
        "<figure class='slider'><div class='both' style='--cut:50%'>"
        f"<img src='{data_url(encoded(clean))}' alt='clean'>"
        f"<img class='over' src='{data_url(encoded(adversarial))}' alt='adversarial'></div>"
        "<label>before <input type='range' min='0' max='100' value='50' "
        "aria-label='before and after' title='Slide between the clean and the adversarial image' "
        "oninput=\"this.closest('figure').firstChild.style.setProperty('--cut', this.value + '%')\"> "
        "after</label></figure>"
    )


def _downloads(clean: Pixels, adversarial: Pixels) -> str:
    links = (
        f"<a class='download' download='{name}.png' href='{data_url(encoded(pixels))}' "
        f"title='The {name} image, pixel by pixel as the model saw it'>Download {name}.png</a>"
        for name, pixels in (("adversarial", adversarial), ("clean", clean))
    )
    return f"<p class='downloads'>{' '.join(links)}</p>"


def _prediction(found: Prediction) -> str:
    """The five likeliest classes of one model, before and after."""
    if not found.clean:
        return ""
    columns = "".join(
        f"<div><h4>{head}</h4><ol>{''.join(_bar(name, value) for name, value in top)}</ol></div>"
        for head, top in (("clean", found.clean), ("attacked", found.attacked))
    )
    return f"<section><h3>{escape(found.scenario)}</h3><div class='columns'>{columns}</div></section>"


def _bar(name: str, value: float) -> str:
    return (
        f"<li style='--share:{100 * value:.1f}%'><span>{escape(name)}</span>"
        f"<output>{100 * value:.1f} %</output></li>"
    )


def _numbers(found: Result) -> str:
    """The numbers below the images."""
    rows = [("PSNR", "∞ (nothing changed)" if math.isinf(found.psnr) else f"{found.psnr:.1f} dB")]
    rows += [
        (f"feature cosine {p.scenario}", f"clean {p.cosine[0]:.3f}, attacked {p.cosine[1]:.3f}")
        for p in found.predictions
    ]
    rows.append(
        ("cost", f"{found.passes[0]} forward and {found.passes[1]} backward passes, {found.seconds:.1f} s")
    )
    if found.warnings:
        rows.append(("warnings", ", ".join(found.warnings)))
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table class='numbers'>{cells}</table>"
