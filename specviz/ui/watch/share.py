"""Recorded runs on the page: open a visitor's file, choose one of the gallery, and take away the run that is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from specviz.errors import TraceError
from specviz.events import Event, RunStarted
from specviz.spreadsheet import harmless
from specviz.trace import Trace, dump_trace, steps_frame
from specviz.ui.problems import sentence_for
from specviz.ui.saved.page import saved_page
from specviz.ui.watch.live import new_encoder
from specviz.ui.wire.outbox import Outbox
from specviz.ui.wire.recorded import Recording, load_gallery, open_upload, recall

__all__ = ["Share", "steps_csv"]

_LINK_JS = """(...values) => {
  const names = %s, defaults = %s, note = document.querySelector('#link-note');
  const url = new URL(location.href);
  for (const name of names) url.searchParams.delete(name);
  url.searchParams.delete('step');
  let said = 'Link copied';
  names.forEach((name, i) => {
    const value = values[i];
    if (value == null || value === defaults[name]) return;
    const text = typeof value === 'boolean' ? String(Number(value)) : String(value);
    if (name === 'prompt' && text.length > %d) { said = 'Link copied, without the long prompt'; return; }
    url.searchParams.set(name, text);
  });
  history.replaceState(history.state, '', url);
  const say = (text) => { note.textContent = text; setTimeout(() => { note.textContent = ''; }, 4000); };
  if (!navigator.clipboard) return say('The link is in the address bar');
  navigator.clipboard.writeText(url.href).then(() => say(said), () => say('The link is in the address bar'));
}"""
MAX_LINK_PROMPT = 4000


class Share:
    """Within a Blocks, build `openers` and `takers`, then `connect`. `offer` is for whoever shows another run."""

    def __init__(self, recording: Recording | None) -> None:
        self._recording = recording
        self._outbox = Outbox()

    def openers(self) -> None:
        """Ways to show a recorded run."""
        runs = [(run.title, run.name) for run in load_gallery().values() if run.path.is_file()]
        self.gallery = gr.Dropdown(
            [("Recorded runs", ""), *runs], value="", label="Recorded runs", show_label=False, container=False,
            filterable=False, elem_id="gallery", scale=0, min_width=150,
        )  # fmt: skip
        self.open = gr.UploadButton("Open a trace", elem_id="open", scale=0, min_width=100)

    def takers(self) -> None:
        """Ways to take the shown run away."""
        narrow: dict[str, Any] = {"scale": 0, "min_width": 80}
        recording, trace, table, page = self._recording, None, None, None
        if recording is not None:
            trace, table, page = self._write(recording.trace.events, recording.trace.plain)
        self.save = gr.DownloadButton("Save trace", trace, interactive=trace is not None, elem_id="save", **narrow)
        self.table = gr.DownloadButton("Save CSV", table, interactive=table is not None, elem_id="csv", **narrow)
        self.page = gr.DownloadButton("Save page", page, interactive=page is not None, elem_id="save-page", **narrow)
        self.copy = gr.Button("Copy link", elem_id="copy", **narrow)

    @property
    def parts(self) -> list[gr.Component]:
        """What `offer` and `allow` change."""
        return [self.gallery, self.open, self.save, self.table, self.page]

    def connect(
        self,
        demo: gr.Blocks,
        *,
        view: gr.HTML,
        outputs: Sequence[gr.Component],
        show: Callable[[Recording, gr.Request], dict[Any, Any] | None],
        fields: Mapping[str, gr.Component],
        defaults: Mapping[str, Any],
    ) -> None:
        """
        Args:
            view: takes the deltas. outputs: everything that `show` may change, the view and `parts` among them.
            show: the updates that put a recorded run in place of the one there; None while a run goes on.
            fields, defaults: what goes into a link.
        """
        self._view, self._show = view, show
        private: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "hidden",
            "preprocess": False,
            "concurrency_id": "traces",
            "concurrency_limit": 2,
        }
        self.gallery.input(self._recall, self.gallery, outputs, **private)
        self.open.upload(self._open, self.open, outputs, **private)
        demo.load(self._linked, None, outputs, **private)
        link = _LINK_JS % (json.dumps(list(fields)), json.dumps(dict(defaults)), MAX_LINK_PROMPT)
        self.copy.click(None, list(fields.values()), None, js=link, api_visibility="private", show_progress="hidden")

    # --- for whoever shows a run -------------------------------------------------------------------------------------

    def offer(self, events: Sequence[Event], plain: Sequence[Event]) -> dict[Any, Any]:
        """Updates that let the visitor take this run away."""
        trace, table, page = self._write(events, plain)
        return {
            self.save: gr.DownloadButton(value=trace, interactive=True),
            self.table: gr.DownloadButton(value=table, interactive=True),
            self.page: gr.DownloadButton(value=page, interactive=True),
        }

    def withdraw(self) -> dict[Any, Any]:
        """Updates while the files would be those of the run before."""
        return {button: gr.DownloadButton(interactive=False) for button in (self.save, self.table, self.page)}

    def allow(self, opening: bool) -> dict[Any, Any]:
        """Updates that allow or forbid to open something else: not while a run goes on."""
        return {self.gallery: gr.Dropdown(interactive=opening), self.open: gr.UploadButton(interactive=opening)}

    # --- what happens ------------------------------------------------------------------------------------------------

    def _recall(self, name: Any, request: gr.Request) -> dict[Any, Any]:
        recording = recall(name) if isinstance(name, str) else None
        if recording is None:
            return {self.gallery: ""}
        return self._shown(recording, request) | {self.gallery: ""}

    def _linked(self, request: gr.Request) -> Iterator[dict[Any, Any]]:
        """The run that the address names."""
        name = dict(request.query_params).get("trace")
        if name is None:
            yield {self.gallery: gr.skip()}
            return
        recording = recall(name)
        if recording is not None:
            yield self._shown(recording, request)
        else:
            sentence = f"There is no recorded run named {name[:40]!r} here. Choose one under “Recorded runs”."
            yield {self._view: new_encoder().error(sentence)}

    def _open(self, payload: Any, request: gr.Request) -> dict[Any, Any]:
        """A visitor's file. It stays where Gradio put it, and goes when Gradio clears its cache."""
        try:
            return self._shown(open_upload(_uploaded(payload)), request)
        except Exception as error:
            return {self._view: new_encoder().error(sentence_for(error))}

    def _shown(self, recording: Recording, request: gr.Request) -> dict[Any, Any]:
        updates = self._show(recording, request)
        if updates is None:
            return {self._view: new_encoder().error("A run is in progress. Press Stop, then open the trace again.")}
        return updates | self.offer(recording.trace.events, recording.trace.plain)

    # --- files -------------------------------------------------------------------------------------------------------

    def _write(self, events: Sequence[Event], plain: Sequence[Event]) -> tuple[str, str, str]:
        """Trace, table and page of a run."""
        stem = _file_stem(events)
        trace, table, page = self._outbox.write({
            f"{stem}.jsonl": dump_trace(events, plain), f"{stem}.csv": steps_csv(events),
            f"{stem}.html": saved_page([Trace(tuple(events), tuple(plain))]),
        })  # fmt: skip
        return trace, table, page


def _uploaded(payload: Any) -> Path:
    """The path in what a browser sent. Raises TraceError for one that is no upload."""
    path = payload.get("path") if isinstance(payload, Mapping) else None
    if isinstance(path, str) and Path(path).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
        return Path(path)
    raise TraceError("No file arrived. Choose a trace again.")


def steps_csv(events: Iterable[Event]) -> str:
    """The steps as CSV. A text that a spreadsheet would run as a formula begins with an apostrophe."""
    frame = steps_frame(events)
    for name in frame.columns:
        frame[name] = [harmless(_told(value)) for value in frame[name]]
    return frame.to_csv(index=False)


def _told(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else value


def _file_stem(events: Sequence[Event]) -> str:
    """specviz-PAIR-METHOD; an opened trace may say anything there."""
    started = events[0]
    assert isinstance(started, RunStarted)
    words = (re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:40].strip(".-") for text in (started.pair, started.method))
    return "-".join(["specviz", *filter(None, words)])
