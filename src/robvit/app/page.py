"""The page: Gradio's controls around what `session` computes and `draw` shows."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from robvit.app import draw
from robvit.app.request import InputImage, Order, Result, png
from robvit.app.script import lines
from robvit.app.session import Bench, Gone
from robvit.app.subjects import KNOWN, OFF, SECRET, Subject
from robvit.data import open_data
from robvit.errors import InputError, RobvitError

SHOWN = 12  # bundled images to choose from
OLD = (60, 600)  # seconds: how often uploads are looked through, and at which age they go

_CLICKED = """element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});"""
TOOLTIPS = {
    "upload": "An image of your own: PNG, JPEG, WebP, GIF, BMP, TIFF or PPM. Its middle is used.",
    "attack": "Attack the chosen image with these settings.",
    "sweep": "Attack the chosen image at 1, 2, 4, 8 and 16 grey levels, one after the other.",
    "stop": "Stop what is running for you.",
    "lines": "Show the Python lines that make the same adversarial image.",
}


def bundled_images() -> list[InputImage]:
    """Images of the sample's judging part, each class at least once."""
    images = open_data("sample", split="test", limit=SHOWN)
    found = []
    for place, name in enumerate(images.names):
        x, y = images[place]
        pixels = (x * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        found.append(InputImage(png(pixels), name, images.classes[int(y)]))
    return found


class Parts(NamedTuple):
    """The components that events read and write."""

    thumbs: gr.HTML
    chosen: gr.HTML
    upload: gr.UploadButton
    attack: gr.Button
    sweep: gr.Button
    stop: gr.Button
    controls: list[Any]
    note: gr.Markdown
    shown: gr.HTML
    curve: gr.HTML
    script: gr.Button
    code: gr.Code


def build(bench: Bench) -> gr.Blocks:
    """The page with its controls; whatever a visitor chooses lives in that visitor's session alone."""
    images = bundled_images()
    page: gr.Blocks = gr.Blocks(title="robvit playground", analytics_enabled=False, delete_cache=OLD)
    with page:
        gr.Markdown(
            "# robvit playground\nAttack a Vision Transformer and see what it takes to fool it, "
            "with and without robustness tokens."
        )
        _connect(bench, images, _lay_out(bench, images))
    page.queue(max_size=bench.limits.waiting, default_concurrency_limit=1, api_open=False)
    return page


def _lay_out(bench: Bench, images: list[InputImage]) -> Parts:
    """Controls to the left, what they lead to on the right; on a phone one below the other."""
    first = next(iter(bench.subjects.values()))
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            thumbs = gr.HTML(draw.thumbnails(images), js_on_load=_CLICKED)
            with gr.Row():
                chosen = gr.HTML(draw.chosen(images[0]))
                upload = gr.UploadButton(
                    "Upload an image", type="binary", file_types=["image"], size="sm", elem_id="upload"
                )
            with gr.Row():
                attack = gr.Button("Attack", variant="primary", elem_id="attack")
                sweep = gr.Button("ε sweep", elem_id="sweep")
                stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=60)
            controls = _controls(bench, first)
            note = gr.Markdown(first.note)
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(
                "<p class='verdict'>Choose an image and press Attack.</p>", min_height=120, elem_id="result"
            )
            curve = gr.HTML("")
            script = gr.Button("Python lines for this", elem_id="lines", interactive=False)
            code = gr.Code(language="python", visible=False, interactive=False, show_line_numbers=False)
    return Parts(thumbs, chosen, upload, attack, sweep, stop, controls, note, shown, curve, script, code)


def _connect(bench: Bench, images: list[InputImage], parts: Parts) -> None:
    """What happens when. Attacks and sweeps share one queue, since the models work for one at a time."""
    image, done = gr.State(images[0]), gr.State("")
    shared: dict[str, Any] = {"api_visibility": "private"}
    light = {**shared, "concurrency_limit": 8, "concurrency_id": "light", "show_progress": "hidden"}
    heavy = {**shared, "concurrency_limit": 1, "concurrency_id": "turn", "show_progress_on": parts.shown}

    def choose(event: gr.EventData) -> tuple[InputImage, str]:
        found = images[_whole(event.index) % len(images)]
        return found, draw.chosen(found)

    def take(data: bytes) -> tuple[InputImage, str]:
        found = bench.upload(data)
        return found, draw.chosen(found)

    def changed(name: str) -> tuple[Any, ...]:
        subject = bench.subjects[name]
        return _tokens(subject), _attacks(subject), subject.note

    def attacking(*given: Any) -> Iterator[tuple[Any, ...]]:
        order = _order(*given)
        again = lines(bench.subject(order), order)
        measure = "cosine of features" if order.on_features else "confidence in the class"
        for news in bench.attack(order):
            ready = isinstance(news, Result)
            seen = draw.result(news, measure) if isinstance(news, Result) else draw.step(news, measure)
            yield seen, "", again, gr.update(interactive=ready), gr.update(visible=False)

    def sweeping(*given: Any) -> Iterator[str]:
        for news in bench.sweep(_order(*given)):
            yield draw.sweep(news)

    def told(again: str) -> Any:
        return gr.update(value=again, visible=True)

    model, tokens, attack, *_ = parts.controls
    wants = [image, *parts.controls]
    results = [parts.shown, parts.curve, done, parts.script, parts.code]
    parts.thumbs.click(friendly(choose), None, [image, parts.chosen], **light)
    parts.upload.upload(friendly(take), parts.upload, [image, parts.chosen], **light)
    model.change(friendly(changed), model, [tokens, attack, parts.note], **light)
    parts.script.click(friendly(told), done, parts.code, **light)
    running: list[Any] = [
        parts.attack.click(friendly_steps(attacking), wants, results, **heavy),
        parts.sweep.click(friendly_steps(sweeping), wants, parts.curve, **heavy),
    ]
    parts.stop.click(None, None, None, cancels=running, **shared)


def _controls(bench: Bench, first: Subject) -> list[Any]:
    """Model, tokens, attack, budget and steps, each with a default and a word of explanation."""
    return [
        gr.Dropdown(
            list(bench.subjects),
            value=first.name,
            label="Model",
            filterable=False,
            info="The network under attack. The small ones are bundled and quick.",
        ),
        _tokens(first),
        _attacks(first),
        gr.Slider(
            1,
            bench.limits.eps,
            value=3,
            step=1,
            label="ε, in grey levels of 255",
            info="How far each value of the image may move. 8 is customary; 3 is hard to see.",
        ),
        gr.Slider(
            1,
            bench.limits.steps,
            value=10,
            step=1,
            label="Steps",
            info="More steps make a stronger attack and take longer.",
        ),
    ]


def _tokens(subject: Subject) -> gr.Radio:
    words = {OFF: "off", SECRET: "on, secret", KNOWN: "on, known to the attacker"}
    return gr.Radio(
        [(words[one], one) for one in subject.tokens],
        value=OFF,
        label="Robustness tokens",
        interactive=len(subject.tokens) > 1,
        info="Trained tokens that harden the model while the attacker does not know them.",
    )


def _attacks(subject: Subject) -> gr.Dropdown:
    names = subject.attacks
    return gr.Dropdown(
        names,
        value="pgd" if "pgd" in names else names[0],
        label="Attack",
        filterable=False,
        info="pgd climbs the gradient, fgsm is its first step, square asks for answers only, "
        "feature needs no classes.",
    )


def _order(image: InputImage | None, *controls: Any) -> Order:
    """What the controls say; anything may come from outside, so the bench checks it."""
    if image is None:
        raise InputError("choose an image first; this page was left alone for too long")
    model, tokens, attack, eps, steps = controls
    return Order(image, str(model), str(tokens), str(attack), _whole(eps), _whole(steps))


def _whole(value: Any) -> int:
    if not isinstance(value, int | float) or value != int(value):
        raise InputError(f"expected a whole number, got {value!r}")
    return int(value)


def friendly(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose visitors see what was refused and why, and nothing of what broke inside."""

    @functools.wraps(answer)
    def guarded(*given: Any) -> Any:
        try:
            return answer(*given)
        except Exception as error:
            raise _told(error) from None

    return guarded


def friendly_steps(answers: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`friendly` for functions that answer step by step."""

    @functools.wraps(answers)
    def guarded(*given: Any) -> Iterator[Any]:
        try:
            yield from answers(*given)
        except Exception as error:
            raise _told(error) from None

    return guarded


def _told(error: Exception) -> gr.Error:
    if isinstance(error, RobvitError):
        return gr.Error(escape(str(error)), print_exception=False, title="Not like this")
    if not isinstance(error, Gone):
        traceback.print_exception(error, file=sys.stderr)
    return gr.Error("Something broke on the server; its log says what.", print_exception=False, title="Sorry")
