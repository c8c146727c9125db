"""A page opened in a real browser by a test that will not hear a word of complaint from it."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, Request


class Visit:
    """The opened page, and everything it complained of or asked others than `allowed` addresses for."""

    def __init__(
        self,
        browser: Browser,
        address: str,
        *,
        allowed: tuple[str, ...],
        patience: int = 30_000,
        **settings: object,
    ) -> None:
        self.complaints: list[str] = []
        self.allowed = (*allowed, "data:")
        self.page: Page = browser.new_context(**settings).new_page()
        self.page.set_default_timeout(patience)  # milliseconds
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self.note)
        self.page.goto(address)

    def note(self, request: Request) -> None:
        if not request.url.startswith(self.allowed):
            self.complaints.append(request.url)

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.page.context.close()
        assert self.complaints == []
