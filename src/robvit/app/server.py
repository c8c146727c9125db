"""Serving the page: on loopback unless there is a password, behind the gate, in a folder of its own."""

from __future__ import annotations

import hmac
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gradio as gr
from starlette.middleware import Middleware

from robvit.app.gate import LOOPBACK, Gate, check_address
from robvit.app.page import SAMPLE, TOOLTIPS, build, example_images
from robvit.app.session import Playground
from robvit.app.visitors import Visitors, queue_places

OVERHEAD = 10_000  # bytes that an upload has around the file
SESSIONS = 256  # visitors whose image is kept, at most some hundred kilobytes each
SYSTEM_FONTS = ["system-ui", "sans-serif"]  # no font comes from elsewhere

# On a phone the result is far below the buttons that lead to it.
_ON_LOAD = """() => {
  const explain = (id, text) => {  // a control may be drawn after the page says that it is loaded
    const control = document.getElementById(id);
    if (control) control.title = text;
    else setTimeout(explain, 100, id, text);
  };
  for (const [id, text] of Object.entries(%s)) explain(id, text);
  document.addEventListener('click', event => {
    const result = document.getElementById('result');
    if (event.target.closest('#attack, #sweep') && result.getBoundingClientRect().top > 0.8 * innerHeight) {
      result.style.minHeight = '75vh';  // room to scroll to it
      result.scrollIntoView({behavior: 'smooth'});
    }
  });
}"""


@contextmanager
def opened(
    playground: Playground,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str = "",
    images: str = SAMPLE,
) -> Iterator[str]:
    """Serve the playground while the block runs; its address. Beyond loopback it takes a password.

    Visitors choose from `images`, a dataset or a folder, or upload their own.
    Uploads lie in a folder of the server's own, which is gone afterwards.
    """
    local = host in LOOPBACK
    check_address(host, port, password)
    shown = example_images(images)
    with tempfile.TemporaryDirectory(prefix="robvit-app-") as name:
        folder = Path(name)
        os.environ["GRADIO_TEMP_DIR"] = name  # read when the page is built and at every upload
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        max_upload = playground.limits.upload_bytes + OVERHEAD
        visitors = Visitors(lambda: queue_places(page), playground.limits.waiting)
        page = build(playground, visitors, shown)
        gate = Middleware(
            Gate,
            hosts=LOOPBACK if local else (),
            max_upload=max_upload,
            folder=folder,
            visitors=visitors,
        )
        try:
            page.launch(
                server_name=host,
                server_port=port,
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                auth=_checks(password) if password else None,
                auth_message="Any name, and the password of this playground.",
                show_error=False,
                footer_links=[],
                run_history=False,
                enable_monitoring=False,
                allowed_paths=[],
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                state_session_capacity=SESSIONS,
                max_file_size=playground.limits.upload_bytes,
                app_kwargs={"middleware": [gate], "docs_url": None, "redoc_url": None, "openapi_url": None},
                css_paths=Path(__file__).with_name("style.css"),
                js=_ON_LOAD % json.dumps(TOOLTIPS),
                theme=gr.themes.Base(font=SYSTEM_FONTS, font_mono=["ui-monospace", "monospace"]),
            )
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            page.close(verbose=False)
            playground.decoder.close()


def _checks(password: str) -> Callable[[str, str], bool]:
    return lambda _, given: hmac.compare_digest(given.encode(), password.encode())
