"""Chromium for tests: where it is, and a page that reports console errors and requests that leave this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

__all__ = ["ChromiumPage", "chromium_path", "close_browser", "open_page", "serve_view"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
_LOOPBACK = {"localhost", "127.0.0.1", "::1", "[::1]"}


class _Shared:
    """Playwright and Chromium, started by the first page and left to the whole session: a start costs a second."""

    playwright: Any = None
    browser: Any = None


def _playwright() -> Any:
    if _Shared.playwright is None:
        from playwright.sync_api import sync_playwright

        _Shared.playwright = sync_playwright().start()
    return _Shared.playwright


def _browser(path: str) -> Any:
    if _Shared.browser is None or not _Shared.browser.is_connected():
        _Shared.browser = _playwright().chromium.launch(executable_path=path, args=list(_ARGS))
    return _Shared.browser


def close_browser() -> None:
    """At the end of the session."""
    if _Shared.browser is not None:
        _Shared.browser.close()
    if _Shared.playwright is not None:
        _Shared.playwright.stop()
    _Shared.browser = _Shared.playwright = None


@cache
def chromium_path() -> str | None:
    """SPECVIZ_CHROMIUM, else a Chromium on PATH, else the one that Playwright downloaded, else None."""
    try:
        own = _playwright().chromium.executable_path
    except Exception:  # Playwright is missing or cannot start: then nothing can open a page
        return None
    candidates = [os.environ.get("SPECVIZ_CHROMIUM"), *map(shutil.which, _NAMES), own]
    return next((path for path in candidates if path and Path(path).is_file()), None)


@dataclass
class ChromiumPage:
    """A page of a fresh profile and what it did: messages of its console, errors among them, requests to elsewhere."""

    page: Any
    messages: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        self.messages.append(f"{message.type}: {message.text}")
        if message.type == "error":
            self.errors.append(message.text)

    def _on_request(self, request: Any) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and (url.hostname or "") not in _LOOPBACK:
            self.outside.append(request.url)


@contextmanager
def open_page(url: str | None = None, **context: Any) -> Iterator[ChromiumPage]:
    """A page of Chromium with an empty profile; `context` goes to `new_context` (viewport, color_scheme, ...).

    Skips the test, saying why, where there is no Chromium.
    """
    path = chromium_path()
    if path is None:
        why = "No Chromium: install one, or set SPECVIZ_CHROMIUM to its path, or run playwright install chromium."
        if os.environ.get("SPECVIZ_REQUIRE_BROWSER"):
            pytest.fail(why)
        pytest.skip(why)
    profile = _browser(path).new_context(**context)
    try:
        watched = ChromiumPage(profile.new_page())
        watched.watch()
        if url is not None:
            watched.page.goto(url)
        yield watched
    finally:
        profile.close()


@contextmanager
def serve_view(demo: Any) -> Iterator[str]:
    """The address of a page that a test has built around the view alone."""
    from specviz.ui.theme import NATIVE_CSS, THEME
    from specviz.ui.view import VIEW_CSS

    _, address, _ = demo.launch(
        prevent_thread_lock=True, quiet=True, theme=THEME, css=VIEW_CSS + NATIVE_CSS, ssr_mode=False, run_history=False
    )
    try:
        yield address
    finally:
        demo.close()
