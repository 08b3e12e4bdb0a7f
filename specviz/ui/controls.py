"""What the handlers of all tabs have in common."""

from __future__ import annotations

from typing import Any

__all__ = ["CONCURRENCY", "OPEN_SETTINGS_JS", "PRIVATE", "QUICK"]

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""For every event of the page: its deltas are no interface for programs, and Gradio's progress would dim the view."""

QUICK: dict[str, Any] = PRIVATE | {"queue": False}
"""For what uses no engine and waits for nobody."""

CONCURRENCY: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 12}
"""Of everything that uses the engine. More than one may be let in, because all but one wait in the host's own line,
which tells each visitor their place and holds the lock until a cancelled run has really ended."""

OPEN_SETTINGS_JS = "() => { document.querySelector('.sidebar .toggle-button')?.click(); }"
