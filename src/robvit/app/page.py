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
from robvit.app.models import KNOWN, OFF, SECRET, PlaygroundModel
from robvit.app.request import AttackRequest, InputImage, Result
from robvit.app.script import python_script
from robvit.app.session import KEPT_SIDE, Playground, VisitorLeft
from robvit.app.visitors import Visitors
from robvit.data import open_data
from robvit.drawing.images import encoded, pixels
from robvit.errors import InputError, RobvitError

SHOWN = 12  # images to choose from
SAMPLE = "sample"  # those that are bundled
OLD = (60, 600)  # seconds: how often uploads are looked through, and at which age they go

_CLICKED = """element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});"""
TOOLTIPS = {
    "upload": "An image of your own: PNG, JPEG, WebP, GIF or BMP. Its middle is used.",
    "attack": "Attack the chosen image with these settings.",
    "sweep": "Attack the chosen image at 1, 2, 4, 8 and 16 grey levels, one after the other.",
    "certificate": "Show where on the chosen image no small patch can change the label.",
    "stop": "Stop what is running for you.",
    "script": "Show a Python script that makes the same adversarial image.",
}


def example_images(spec: str = SAMPLE) -> list[InputImage]:
    """Images to choose from, class after class: of the bundled sample, or of any dataset or folder."""
    bundled = spec == SAMPLE
    images = open_data(spec, limit=SHOWN, size=None if bundled else KEPT_SIDE, resize="crop")
    found = []
    for place, name in enumerate(images.names):
        x, y = images[place]
        label = images.classes[int(y)] if images.kind == "labels" and images.classes else name
        found.append(InputImage(encoded(pixels(x)), name if bundled else "", label))
    return found


class Parts(NamedTuple):
    """The components that events read and write."""

    thumbs: gr.HTML
    chosen: gr.HTML
    upload: gr.UploadButton
    attack: gr.Button
    sweep: gr.Button
    certificate: gr.Button
    stop: gr.Button
    controls: list[Any]
    note: gr.Markdown
    result: gr.HTML
    curve: gr.HTML
    script: gr.Button
    code: gr.Code


def build(playground: Playground, visitors: Visitors, images: list[InputImage]) -> gr.Blocks:
    """The page with its controls; what a visitor chooses is kept in that visitor's session alone."""
    page: gr.Blocks = gr.Blocks(title="robvit playground", analytics_enabled=False, delete_cache=OLD)
    with page:
        gr.Markdown(
            "# robvit playground\nAttack a Vision Transformer and see how little it takes to fool it, "
            "with and without robustness tokens."
        )
        _connect(playground, visitors, images, _lay_out(playground, images))
    page.queue(max_size=playground.limits.waiting, default_concurrency_limit=1, api_open=False)
    return page


def _lay_out(playground: Playground, images: list[InputImage]) -> Parts:
    """Controls to the left, the result on the right; on a phone one below the other."""
    first = next(iter(playground.models.values()))
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
                certificate = _certificate(first)
                stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=60)
            controls = _controls(playground, first)
            note = gr.Markdown(_notes(first))
        with gr.Column(scale=3, min_width=300):
            result = gr.HTML(
                "<p class='verdict'>Choose an image and press Attack.</p>", min_height=120, elem_id="result"
            )
            curve = gr.HTML("")
            script = gr.Button("Python script for this", elem_id="script", interactive=False)
            code = gr.Code(language="python", visible=False, interactive=False, show_line_numbers=False)
    buttons = (attack, sweep, certificate, stop)
    return Parts(thumbs, chosen, upload, *buttons, controls, note, result, curve, script, code)


def _connect(playground: Playground, visitors: Visitors, images: list[InputImage], parts: Parts) -> None:
    """The events. Attacks and sweeps share one queue, since the models work for one request at a time."""
    image, code = gr.State(images[0]), gr.State("")
    shared: dict[str, Any] = {"api_visibility": "private"}
    light = {**shared, "concurrency_limit": 8, "concurrency_id": "light", "show_progress": "hidden"}
    heavy = {**shared, "concurrency_limit": 1, "concurrency_id": "models", "show_progress_on": parts.result}

    def choose(event: gr.EventData) -> tuple[InputImage, str]:
        found = images[_whole(event.index) % len(images)]
        return found, draw.chosen(found)

    def take(data: bytes) -> tuple[InputImage, str]:
        found = playground.upload(data)
        return found, draw.chosen(found)

    def changed(name: str) -> tuple[Any, ...]:
        model = playground.models[name]
        return _tokens(model), _attacks(model), _certificate(model), _notes(model)

    def attacking(visit: gr.Request, *given: Any) -> Iterator[tuple[Any, ...]]:
        request = _request(*given)
        code = python_script(playground.model(request), request)
        for update in visitors.while_listening(visit.session_hash, playground.attack(request)):
            ready = isinstance(update, Result)
            html = draw.result(update) if isinstance(update, Result) else draw.step(update, request)
            yield html, "", code, gr.update(interactive=ready), gr.update(visible=False)

    def sweeping(visit: gr.Request, *given: Any) -> Iterator[str]:
        for update in visitors.while_listening(visit.session_hash, playground.sweep(_request(*given))):
            yield draw.sweep(update)

    def certifying(visit: gr.Request, *given: Any) -> Iterator[str]:
        for found in visitors.while_listening(visit.session_hash, playground.certificate(_request(*given))):
            yield draw.patch_map(found)

    def show(code: str) -> Any:
        return gr.update(value=code, visible=True)

    model, tokens, attack, *_ = parts.controls
    inputs = [image, *parts.controls]
    results = [parts.result, parts.curve, code, parts.script, parts.code]
    parts.thumbs.click(report_errors(choose), None, [image, parts.chosen], **light)
    parts.upload.upload(report_errors(take), parts.upload, [image, parts.chosen], **light)
    model.change(report_errors(changed), model, [tokens, attack, parts.certificate, parts.note], **light)
    parts.script.click(report_errors(show), code, parts.code, **light)
    running: list[Any] = [
        parts.attack.click(report_stream_errors(attacking), inputs, results, **heavy),
        parts.sweep.click(report_stream_errors(sweeping), inputs, parts.curve, **heavy),
        parts.certificate.click(report_stream_errors(certifying), inputs, parts.curve, **heavy),
    ]
    parts.stop.click(None, None, None, cancels=running, **shared)


def _controls(playground: Playground, first: PlaygroundModel) -> list[Any]:
    """Model, tokens, attack, budget and steps, each with a default and a word of explanation."""
    return [
        gr.Dropdown(
            list(playground.models),
            value=first.name,
            label="Model",
            elem_id="model",
            filterable=False,
            info="The network under attack. The small ones are bundled and quick.",
        ),
        _tokens(first),
        _attacks(first),
        gr.Slider(
            1,
            playground.limits.eps,
            value=3,
            step=1,
            label="ε, in grey levels of 255",
            info="How far each value of the image may move. 8 is customary; 3 is hard to see.",
        ),
        gr.Slider(
            1,
            playground.limits.steps,
            value=10,
            step=1,
            label="Steps",
            info="More steps make a stronger attack and take longer.",
        ),
    ]


def _tokens(model: PlaygroundModel) -> gr.Radio:
    words = {OFF: "off", SECRET: "on, secret", KNOWN: "on, known to the attacker"}
    return gr.Radio(
        [(words[one], one) for one in model.tokens],
        value=OFF,
        label="Robustness tokens",
        interactive=len(model.tokens) > 1,
        info="Trained tokens that harden the model while the attacker does not know them.",
    )


def _attacks(model: PlaygroundModel) -> gr.Dropdown:
    names = model.attacks
    return gr.Dropdown(
        names,
        value="pgd" if "pgd" in names else names[0],
        label="Attack",
        filterable=False,
        info="pgd climbs the gradient, fgsm is its first step, square uses outputs only, "
        "feature needs no classes.",
    )


def _certificate(model: PlaygroundModel) -> gr.Button:
    return gr.Button("Patch certificate", elem_id="certificate", interactive=not model.uncertifiable)


def _notes(model: PlaygroundModel) -> str:
    """What a visitor should know who finds a control missing or grey."""
    reason = model.uncertifiable
    return "\n\n".join(filter(None, (model.note, reason and f"No patch certificate: {reason}.")))


def _request(image: InputImage | None, *controls: Any) -> AttackRequest:
    """What the controls say; anything may come from outside, so the playground checks it."""
    if image is None:
        raise InputError("choose an image first; this page was left alone for too long")
    model, tokens, attack, eps, steps = controls
    return AttackRequest(image, str(model), str(tokens), str(attack), _whole(eps), _whole(steps))


def _whole(value: Any) -> int:
    if not isinstance(value, int | float) or value != int(value):
        raise InputError(f"expected a whole number, got {value!r}")
    return int(value)


def report_errors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler, whose visitors see what was refused and why, and nothing of an internal error."""

    @functools.wraps(handler)
    def guarded(*given: Any) -> Any:
        try:
            return handler(*given)
        except Exception as error:
            raise _shown_error(error) from None

    return guarded


def report_stream_errors(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`report_errors` for handlers that yield updates."""

    @functools.wraps(handler)
    def guarded(*given: Any) -> Iterator[Any]:
        try:
            yield from handler(*given)
        except Exception as error:
            raise _shown_error(error) from None

    return guarded


def _shown_error(error: Exception) -> gr.Error:
    if isinstance(error, RobvitError):
        return gr.Error(escape(str(error)), print_exception=False, title="Not accepted")
    if not isinstance(error, VisitorLeft):
        traceback.print_exception(error, file=sys.stderr)
    return gr.Error(
        "Something failed on the server; its log says what.", print_exception=False, title="Error"
    )
