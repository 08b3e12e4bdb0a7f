"""The tab "Race": which methods run against plain decoding, and what they came to. The view does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from specviz.drafters.registry import METHODS
from specviz.errors import SpecvizError
from specviz.generate.titles import PEERS, TITLES
from specviz.models.catalog import ModelPair
from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import Visits
from specviz.ui.controls import CONCURRENCY, OPEN_SETTINGS_JS, PRIVATE
from specviz.ui.header import HeaderNews
from specviz.ui.problems import sentence_for
from specviz.ui.race.lanes import Lane, load_lanes, to_csv
from specviz.ui.race.racing import MAX_RACERS, RaceEncoder, RaceSettings, recorded_race, run_race
from specviz.ui.saved.page import race_page
from specviz.ui.wire.outbox import Outbox
from specviz.ui.wire.recorded import TRACES

__all__ = ["RECORDED_RACE", "Race"]

RECORDED_RACE = TRACES / "race"

_FAVOURITES = ("cascade", "prompt-lookup", "feature", "draft-model", "ngram-table", "lookahead")
"""Chosen at first, as far as the pair offers them: three that differ much."""

_HOW = (
    "up to three methods, with the prompt and settings on the left. They run one after another and are replayed on one "
    "clock: two at once would slow each other down."
)


class Race:
    """The tab's parts and what they do. Within a Blocks, build `toolbar`, then `connect`.

    fields: the settings that all tabs share, by the names of `settings.DEFAULTS`. pairs: names that can be chosen.
    """

    def __init__(self, host: EngineHost, fields: Mapping[str, gr.Component], pairs: Sequence[str]) -> None:
        self.host = host
        self.fields = fields
        self.pairs = pairs
        self.visits = Visits()
        self.recorded = load_lanes(RECORDED_RACE)
        self._outbox = Outbox()

    def toolbar(self) -> None:
        """The row of actions, and the methods to race."""
        narrow: dict[str, Any] = {"scale": 0, "min_width": 88}
        with gr.Row(elem_classes="toolbar"):
            with gr.Row(elem_classes="actions"):
                self.settings = gr.Button("Settings", elem_classes="open-settings", **narrow)
                self.start = gr.Button(
                    "Start the race",
                    variant="primary",
                    elem_classes="run",
                    elem_id="race-start",
                    scale=0,
                    min_width=156,
                )
                self.stop = gr.Button("Stop", interactive=False, elem_classes="stop", elem_id="race-stop", **narrow)
            with gr.Row(elem_classes="extras"):
                self.save = gr.DownloadButton(
                    "Save table", value=self._table(self.recorded) if self.recorded else None,
                    interactive=bool(self.recorded), elem_id="race-save", scale=0, min_width=90,
                )  # fmt: skip
                self.page = gr.DownloadButton(
                    "Save page", value=self._page(self.recorded) if self.recorded else None,
                    interactive=bool(self.recorded), elem_id="race-page", scale=0, min_width=90,
                )  # fmt: skip
        choices = _choices(self.host.pairs[self.host.default_pair])
        self.racers = gr.Dropdown(
            choices, value=_favourites(choices), multiselect=True, max_choices=MAX_RACERS, filterable=False,
            label="Against plain decoding", info=_HOW,
            elem_id="racers",
        )  # fmt: skip

    def connect(self, demo: gr.Blocks, tab: gr.Tab, view: gr.HTML, header: gr.HTML) -> None:
        """Wire the parts. Values arrive as the browser sent them; `RaceSettings` refuses bad ones in words."""
        self.view, self.header = view, header
        raw: dict[str, Any] = PRIVATE | {"preprocess": False}
        quick: dict[str, Any] = raw | {"queue": False}
        inputs = [self.racers, *self.fields.values()]
        outputs = [header, view, self.start, self.stop, self.save, self.page]
        self.start.click(self._run, inputs, outputs, **raw, **CONCURRENCY)
        self.stop.click(self._stop, None, self.stop, **quick)
        self.settings.click(None, None, None, js=OPEN_SETTINGS_JS, **PRIVATE)
        self.fields["pair"].change(self._offer, [self.fields["pair"], self.racers], self.racers, **quick)
        if self.recorded:  # sent when the tab is first seen: the other tabs do without it
            tab.select(lambda: recorded_race(self.recorded), None, view, **quick)
        demo.unload(self._leave)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _run(self, request: gr.Request, racers: Any, *values: Any) -> Iterator[dict[Any, Any]]:
        encoder = RaceEncoder()
        try:
            settings = RaceSettings.read(dict(zip(self.fields, values, strict=True)), racers, self.pairs)
        except SpecvizError as error:
            yield {self.view: encoder.problem(sentence_for(error))}
            return
        yield {
            self.view: encoder.status("Getting ready"),
            self.start: gr.Button(interactive=False),
            self.stop: gr.Button(interactive=True),
        } | self._offered(False)
        header = HeaderNews(self.header, self.host)
        for delta in run_race(self.host, self.visits.of(request.session_hash), settings, encoder):
            yield {self.view: delta} | header()
        files = self._saved(encoder) if encoder.lanes else self._offered(bool(self.recorded))
        yield {self.start: gr.Button(interactive=True), self.stop: gr.Button(interactive=False)} | files

    def _offered(self, is_offered: bool) -> dict[Any, Any]:
        """Whether the files there are can be taken: not while they are those of the race before."""
        return {button: gr.DownloadButton(interactive=is_offered) for button in (self.save, self.page)}

    def _saved(self, encoder: RaceEncoder) -> dict[Any, Any]:
        try:
            return {
                self.save: gr.DownloadButton(value=self._table(encoder.lanes), interactive=True),
                self.page: gr.DownloadButton(value=self._page(encoder.lanes), interactive=True),
            }
        except OSError as error:  # a full disk: the race itself is on the page already
            return {self.view: encoder.problem(sentence_for(error))}

    def _stop(self, request: gr.Request) -> Any:
        self.visits.of(request.session_hash).ask_to_stop()
        return gr.Button(interactive=False)

    def _leave(self, request: gr.Request) -> None:
        self.visits.forget(request.session_hash)

    def _offer(self, pair: Any, racers: Any) -> Any:
        """The methods of another pair; of those chosen, the ones it has too."""
        chosen = self.host.pairs.get(pair) if isinstance(pair, str) else None
        if chosen is None or not isinstance(racers, list):
            return gr.skip()
        choices = _choices(chosen)
        kept = [name for _, name in choices if name in racers]
        return gr.Dropdown(choices=choices, value=kept or _favourites(choices))

    def _table(self, lanes: Sequence[Lane]) -> str:
        [path] = self._outbox.write({"specviz-race.csv": to_csv(lanes)})
        return path

    def _page(self, lanes: Sequence[Lane]) -> str:
        [path] = self._outbox.write({"specviz-race.html": race_page(lanes)})
        return path


def _choices(pair: ModelPair) -> list[tuple[str, str]]:
    """(title, name) of what this pair can race against plain decoding: specviz's methods, then transformers' own."""
    offered = {method.name: method.title for method in METHODS.values() if method.is_offered(pair)}
    own = [(title, name) for name, title in offered.items() if name != "plain"]
    return own + [(TITLES[peer], peer) for peer, like in PEERS.items() if like in offered]


def _favourites(choices: Sequence[tuple[str, str]]) -> list[str]:
    names = [name for _, name in choices]
    return [name for name in _FAVOURITES if name in names][:MAX_RACERS]
