"""The tab "Watch": what to run, the run as it happens, and what it came to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.config import APPROXIMATE_RULES, GREEDY_BELOW, MAX_GAMMA
from specviz.drafters.options import Option
from specviz.drafters.registry import METHODS, get_method
from specviz.models.catalog import DRAFT_QUANTS, ModelPair
from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import ALREADY_RUNNING, LastRun, Visits
from specviz.ui.charts import summarize
from specviz.ui.controls import CONCURRENCY, OPEN_SETTINGS_JS, PRIVATE
from specviz.ui.header import HeaderNews, header_value
from specviz.ui.presets import load_regimes
from specviz.ui.problems import sentence_for
from specviz.ui.settings import (
    DEFAULTS,
    DTYPES,
    MAX_PROMPT_CHARS,
    MAX_TIME_S,
    METHOD_OPTIONS,
    WatchSettings,
    read_link,
)
from specviz.ui.view import make_view
from specviz.ui.watch.figures import TEXT_JS, Figures
from specviz.ui.watch.live import can_measure_later, measure_plain, new_encoder, run_live
from specviz.ui.watch.server_choice import SERVER_INFO, connect_server_choice
from specviz.ui.watch.share import Share
from specviz.ui.wire.recorded import Recording

__all__ = ["Watch"]

POLL_S = 0.5

_CONDITIONAL = {
    "confidence": ("draft_length", "confidence"),
    "epsilon": ("verify", "typical"),
    "delta": ("verify", "typical"),
    "threshold": ("verify", "threshold"),
}
"""Fields that mean something only while another one has a certain value."""

_PROMISES = {
    "exact": (
        "Exact: the same text as plain decoding.",
        "With exact passes on, greedy text equals plain decoding’s to the bit.",
    ),
    "chains": (
        "Exact as a chain, lossless as a tree.",
        "As a chain, with exact passes on, greedy text equals plain decoding’s to the bit. As a tree it keeps "
        "the target’s distribution; greedy near-ties may resolve differently.",
    ),
    "lossless": (
        "Lossless: the target’s own distribution.",
        "Sampled text follows the target’s distribution. Greedy near-ties may resolve differently.",
    ),
    "approximate": (
        "Approximate: not the target’s distribution.",
        "This rule keeps some tokens that the target would have refused.",
    ),
}
"""What each word means: a line, and what is said on demand."""

_PROMISE_HTML = "<details class='promise'><summary></summary><p></p></details>"
_PROMISE_JS = """
const [line, rest] = ['summary', 'p'].map((tag) => element.querySelector(tag));
const show = () => { [line.textContent, rest.textContent] = JSON.parse(props.value); };
watch('value', show);
show();
"""

_OPTION_LABELS = {
    "ngram": "N-gram",
    "min_count": "Least count",
}
"""Where a setting's name is no word."""

_PRESET_JS = """(name) => {
  const prompts = (%s)[name];
  if (!prompts) return '';
  const turns = window.specvizTurns ??= {};
  return prompts[(turns[name] = (turns[name] ?? -1) + 1) %% prompts.length];
}"""


class Watch:
    """The tab's parts and what they do. Within a Blocks, build `sidebar`, `toolbar` and `main`, then `connect`."""

    def __init__(self, host: EngineHost, recording: Recording | None) -> None:
        self.host = host
        self.recording = recording
        self.visits = Visits()
        self.fields: dict[str, gr.Component] = {}
        self._refused = host.refusals()
        self.share = Share(recording)

    # --- parts -------------------------------------------------------------------------------------------------------

    def sidebar(self) -> None:
        """What to run, by the names of DEFAULTS."""
        host, regimes = self.host, load_regimes()
        pair = host.pairs[host.default_pair]
        f = self.fields
        f["prompt"] = gr.Textbox(
            regimes[0].prompts[0], label="Prompt", lines=3, max_lines=7, max_length=MAX_PROMPT_CHARS, elem_id="prompt",
            placeholder="What should the model answer?",
        )  # fmt: skip
        self.preset = gr.Radio(
            [(regime.title, regime.name) for regime in regimes], value=regimes[0].name, label="Prompts to try",
            show_label=False, container=False, elem_classes="presets", elem_id="presets",
        )  # fmt: skip
        f["pair"] = gr.Dropdown(
            self._pair_choices(), value=host.first_choice, filterable=False, elem_id="pair",
            label="Model pair or server" if host.servers else "Model pair",
            info=SERVER_INFO if host.servers else _pair_info(pair),
        )  # fmt: skip
        if self._refused:
            with gr.Accordion("Pairs that do not fit here", open=False, elem_classes="quiet"):
                gr.Markdown("\n".join(f"- {sentence}" for sentence in self._refused.values()))
        f["method"] = gr.Dropdown(
            _method_choices(pair), value=DEFAULTS["method"], label="How to draft", elem_id="method", filterable=False,
            info=get_method(DEFAULTS["method"]).summary,
        )  # fmt: skip
        self.promise = gr.HTML(
            value=_promise(DEFAULTS["method"], DEFAULTS["temperature"], pair), html_template=_PROMISE_HTML,
            js_on_load=_PROMISE_JS, apply_default_css=False, elem_id="promise",
        )  # fmt: skip
        self.own = self._own_fields(essential=True)
        f["gamma"] = _slider("Tokens drafted per step, γ", 0, MAX_GAMMA, "gamma", 1)
        f["temperature"] = _slider("Temperature", 0, 1.5, "temperature", 0.05)
        f["max_new_tokens"] = _slider("New tokens, at most", 16, 512, "max_new_tokens", 16)
        f["measure_plain"] = gr.Checkbox(
            DEFAULTS["measure_plain"], label="Measure plain decoding too", info="needed for the speed-up",
            elem_id="measure",
        )  # fmt: skip
        with gr.Accordion("More settings", open=False, elem_id="more"):
            self.own_more = self._own_fields(essential=False)
            f["top_k"] = _slider("Top-k, 0 is off", 0, 200, "top_k", 1)
            f["top_p"] = _slider("Top-p, 1 is off", 0.05, 1, "top_p", 0.05)
            f["repetition_penalty"] = _slider("Repetition penalty, 1 is off", 1, 2, "repetition_penalty", 0.05)
            f["seed"] = gr.Textbox("", label="Seed", info="empty for a fresh one, kept in the trace", max_lines=1)
            f["stop"] = gr.Textbox("", label="Stop texts", info="one a line, at most 8; \\n is a line end", lines=2)
            f["exact"] = gr.Radio(
                [("Where it is cheap", "auto"), ("On", "on"), ("Off", "off")], value=DEFAULTS["exact"],
                label="Exact passes",
                info="padded so that greedy text equals plain decoding’s to the bit",
            )  # fmt: skip
            f["width"] = gr.Radio(
                [("8, γ to 7", 8), ("16, γ to 15", 16)], value=DEFAULTS["width"], label="Most rows of an exact pass"
            )
            f["draft_quant"] = gr.Dropdown(
                [("The pair’s own", "auto"), *((quant, quant) for quant in DRAFT_QUANTS)], value="auto",
                label="Draft precision", info="how a drafting model’s weights are held", filterable=False,
            )  # fmt: skip
            f["draft_length"] = gr.Dropdown(
                [("γ every step", "fixed"), ("Longer after success", "heuristic"),
                 ("Until the draft doubts", "confidence"), ("Best in theory", "best")],
                value=DEFAULTS["draft_length"], label="Draft length", info="from step to step, at most γ",
                filterable=False,
            )  # fmt: skip
            f["confidence"] = _slider("Doubt below", 0, 1, "confidence", 0.05, visible=False)
            f["verify"] = gr.Dropdown(
                [("Lossless, the best for the draft", "auto"), ("Lossless, drawn chains as a block", "block"),
                 ("Lossless, token by token", "token"), ("Typical acceptance, approximate", "typical"),
                 ("Threshold, approximate", "threshold")],
                value=DEFAULTS["verify"], label="Verification", info="which drafted tokens are kept", filterable=False,
            )  # fmt: skip
            f["epsilon"] = _slider("Typical acceptance, ε", 0, 1, "epsilon", 0.01, visible=False)
            f["delta"] = _slider("Typical acceptance, δ", 0, 1, "delta", 0.05, visible=False)
            f["threshold"] = _slider("Threshold of p", 0, 1, "threshold", 0.05, visible=False)
            f["dtype"] = gr.Dropdown(
                [("What is fast here", "auto"), *((dtype, dtype) for dtype in DTYPES[1:])], value=host.default_dtype,
                label="Number format", info="of all computing; another one loads the pair again", filterable=False,
            )  # fmt: skip
            f["raw"] = gr.Checkbox(DEFAULTS["raw"], label="No chat template", info="the model continues the text")
            f["detail"] = gr.Checkbox(
                DEFAULTS["detail"], label="Record likeliest tokens", info="five of draft and target each"
            )
            f["time_limit_s"] = _slider("Time limit, seconds", 5, MAX_TIME_S, "time_limit_s", 5)

    def _own_fields(self, *, essential: bool) -> gr.Column:
        """The methods' own settings: the essential ones beside the method, the rest under "More settings"."""
        method = DEFAULTS["method"]
        with gr.Column(elem_classes="own", visible=_has_own(method, essential=essential)) as column:
            for name, option in METHOD_OPTIONS.items():
                if option.essential == essential:
                    self.fields[name] = _option_field(option, visible=_has_option(method, name))
        return column

    def toolbar(self) -> None:
        """The row of actions."""
        with gr.Row(elem_classes="toolbar", elem_id="runbar"):
            with gr.Row(elem_classes="actions"):
                narrow: dict[str, Any] = {"scale": 0, "min_width": 94}
                self.settings = gr.Button("Settings", elem_classes="open-settings", elem_id="settings", **narrow)
                self.run = gr.Button("Run", variant="primary", elem_classes="run", elem_id="run", **narrow)
                self.stop = gr.Button("Stop", interactive=False, elem_classes="stop", elem_id="stop", **narrow)
            with gr.Row(elem_classes="extras"):
                self.note = gr.HTML(
                    html_template="<p id='link-note' role='status'></p>", js_on_load=TEXT_JS, apply_default_css=False,
                    elem_classes="note",
                )  # fmt: skip
                self.plain = gr.Button("Measure plain decoding", visible=False, elem_id="plain", scale=0, min_width=170)
                self.share.openers()
                self.share.takers()

    def main(self) -> None:
        """The view, which all tabs share, and the figures after a run."""
        self.view = make_view(self.recording.delta if self.recording else None)
        # Never without figures: the first Plot of a page costs its browser a second, and that is paid at load.
        summary = self.recording.summary if self.recording else summarize(())
        with gr.Column(elem_classes="after", elem_id="after", visible=self.recording is not None) as self.after:
            gr.HTML(html_template="<h2>After the run</h2>", js_on_load=None, apply_default_css=False)
            with gr.Row(equal_height=False):
                self.figures = Figures(summary)
        self.timer = gr.Timer(POLL_S)

    def connect(self, demo: gr.Blocks, header: gr.HTML) -> None:
        """Wire the parts. Values arrive as the browser sent them: Gradio would refuse bad ones in a toast only, while
        `WatchSettings` refuses them as content of the page."""
        self.header = header
        inputs = list(self.fields.values())
        live = [header, self.view, self.run, self.stop, self.plain, self.note, self.after, *self.share.parts]
        outputs = [*live, *self.figures.parts]
        raw: dict[str, Any] = PRIVATE | {"preprocess": False}
        quick: dict[str, Any] = raw | {"queue": False}
        # Gradio writes something of every output into every message: the figures, which come last, are not among them.
        for run in (
            self.run.click(self._run, inputs, live, **raw, **CONCURRENCY),
            self.fields["prompt"].submit(self._run, inputs, live, **raw, **CONCURRENCY),
            self.plain.click(self._measure, None, live, **raw, **CONCURRENCY),
        ):
            run.then(self._results, None, outputs, **quick)
        self.stop.click(self._stop, None, self.stop, **quick)

        prompts = {regime.name: regime.prompts for regime in load_regimes()}
        self.preset.input(None, self.preset, self.fields["prompt"], js=_PRESET_JS % json.dumps(prompts), **PRIVATE)
        self.fields["prompt"].input(None, None, self.preset, js="() => [null]", **PRIVATE)
        shaping = [self.fields[name] for name in ("pair", "method", "temperature", "draft_length", "verify")]
        further = [self.fields[name] for name in (*METHOD_OPTIONS, *_CONDITIONAL)]
        shaped = [*shaping[:2], self.promise, self.own, self.own_more, *further]
        gr.on([field.change for field in shaping], self._shape, shaping, shaped, trigger_mode="always_last", **quick)
        defaults = DEFAULTS | {"pair": self.host.first_choice, "dtype": self.host.default_dtype}
        self.share.connect(
            demo, view=self.view, outputs=outputs, show=self._recorded, fields=self.fields, defaults=defaults
        )
        self.settings.click(None, None, None, js=OPEN_SETTINGS_JS, **PRIVATE)
        connect_server_choice(self.host, demo, self.fields, (self.promise, self.own, self.own_more))

        demo.load(self._restore, None, [*inputs, self.preset, self.note], **quick)
        self.timer.tick(self._poll, None, [header, self.view, self.timer], **quick)
        demo.unload(self._leave)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _run(self, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        visit = self.visits.of(request.session_hash)
        encoder = new_encoder()
        try:
            settings = WatchSettings.read(dict(zip(self.fields, values, strict=True)), self.offered())
        except Exception as error:  # a program may send anything, other fields than the page's too
            yield {self.view: encoder.error(sentence_for(error))}
            return
        if visit.stop is not None:  # the run in hand keeps the view and its Stop button
            yield {self.note: ALREADY_RUNNING}
            return
        yield self._busy() | {
            self.view: encoder.status("Getting ready"),
            self.plain: gr.Button(visible=False),
            self.note: "",
        }
        begun, header = False, HeaderNews(self.header, self.host)
        for delta in run_live(self.host, visit, settings, encoder):
            more: dict[Any, Any] = {}
            if encoder.started is not None and not begun:
                begun = True  # the figures below belong to the run before
                more = {self.after: gr.Column(visible=False)} | self.share.withdraw()
            yield {self.view: delta} | more | header()
        if begun and visit.last is not None:
            visit.last.is_shown = False
        yield self._idle()

    def _measure(self, request: gr.Request) -> Iterator[dict[Any, Any]]:
        visit = self.visits.of(request.session_hash)
        yield self._busy()
        for delta in measure_plain(self.host, visit):
            yield {self.view: delta}
        if visit.last is not None:
            visit.last.is_shown = False
        yield self._idle()

    def _stop(self, request: gr.Request) -> Any:
        visit = self.visits.known(request.session_hash)
        if visit is not None:
            visit.ask_to_stop()
        return gr.Button(interactive=False)

    def _leave(self, request: gr.Request) -> None:
        self.visits.forget(request.session_hash)

    def _busy(self) -> dict[Any, Any]:
        buttons = {self.run: gr.Button(interactive=False), self.stop: gr.Button(interactive=True)}
        return buttons | self.share.allow(False)

    def _idle(self) -> dict[Any, Any]:
        return {
            self.run: gr.Button(interactive=True),
            self.stop: gr.Button(interactive=False),
            self.header: header_value(self.host.status),
        } | self.share.allow(True)

    def _results(self, request: gr.Request) -> dict[Any, Any]:
        """Figures and files of the visitor's last run, once it has ended."""
        visit = self.visits.known(request.session_hash)
        run = visit.last if visit is not None and visit.stop is None else None
        if run is None or run.is_shown:
            return {self.view: gr.skip()}
        run.is_shown = True
        try:
            return self._shown(run)
        except Exception as error:  # a full disk, say: the run itself is on the page already
            return {self.view: run.encoder.error(sentence_for(error))}

    def _shown(self, run: LastRun) -> dict[Any, Any]:
        figures = self.figures.show(summarize(run.events, run.encoder.plain))
        buttons = {self.after: gr.Column(visible=True), self.plain: gr.Button(visible=can_measure_later(run))}
        return figures | buttons | self.share.offer(run.events, run.plain)

    def _recorded(self, recording: Recording, request: gr.Request) -> dict[Any, Any] | None:
        """A recorded run in place of the one that is shown; None while the visitor's own goes on."""
        visit = self.visits.of(request.session_hash)
        if visit.stop is not None:
            return None
        visit.last = None
        return self.figures.show(recording.summary) | {
            self.view: recording.delta,
            self.after: gr.Column(visible=True),
            self.plain: gr.Button(visible=False),
        }

    def _poll(self, request: gr.Request) -> dict[Any, Any]:
        """Progress of the first load, until it has settled. A run in hand tells its own progress to the view."""
        status = self.host.status
        out: dict[Any, Any] = {self.header: header_value(status)}
        if status.phase != "loading":
            out[self.timer] = gr.Timer(active=False)
        visit = self.visits.known(request.session_hash)
        if visit is None or visit.stop is None:
            encoder = new_encoder()
            if status.phase == "failed":
                out[self.view] = encoder.error(status.text)
            elif status.phase == "loading":
                out[self.view] = encoder.status(f"A recorded run is playing. {status.text}", status.fraction)
            elif status.phase == "ready":
                out[self.view] = encoder.status("")
        return out

    def _shape(self, pair: Any, method: Any, temperature: Any, draft_length: Any, verify: Any) -> list[Any]:
        """The menus' own words after a choice (what the pair is, which methods it can run, what the method promises),
        and only those further fields that would do something (case 116)."""
        chosen = self.host.pairs.get(pair) if isinstance(pair, str) else None
        if chosen is None or not isinstance(method, str) or method not in METHODS:
            return [gr.skip()] * (5 + len(METHOD_OPTIONS) + len(_CONDITIONAL))
        choices = _method_choices(chosen)
        value = method if method in [name for _, name in choices] else DEFAULTS["method"]
        shown = {"draft_length": draft_length, "verify": verify}
        return [
            gr.Dropdown(info=_pair_info(chosen)),
            gr.Dropdown(choices=choices, value=value, info=get_method(value).summary),
            gr.HTML(value=_promise(value, temperature, chosen, verify), visible=True),
            gr.Column(visible=_has_own(value, essential=True)),
            gr.Column(visible=_has_own(value, essential=False)),
            *(gr.update(visible=_has_option(value, name)) for name in METHOD_OPTIONS),
            *(gr.update(visible=shown[field] == choice) for field, choice in _CONDITIONAL.values()),
        ]

    def _restore(self, request: gr.Request) -> list[Any]:
        """Fields from the link's query, as far as it holds; what does not is left alone and named."""
        good, ignored = read_link(dict(request.query_params), self.offered())
        out = [good.get(name, gr.skip()) for name in self.fields]
        preset = None if "prompt" in good else gr.skip()
        note = f"Ignored in the link: {', '.join(ignored)}" if ignored else ""
        return [*out, preset, note]

    # --- choices -----------------------------------------------------------------------------------------------------

    def offered(self) -> list[str]:
        """Names of the servers and pairs that can be chosen, the first choice first."""
        names = [name for name in self.host.pairs if name not in self._refused and name != self.host.default_pair]
        return [*self.host.servers, self.host.default_pair, *names]

    def _pair_choices(self) -> list[tuple[str, str]]:
        return [((self.host.servers.get(name) or self.host.pairs[name]).title, name) for name in self.offered()]


def _slider(label: str, low: float, high: float, name: str, step: float, *, visible: bool = True) -> gr.Slider:
    return gr.Slider(
        low, high, DEFAULTS[name], step=step, label=label, buttons=[], elem_id=name.replace("_", "-"), visible=visible
    )


def _has_option(method: str, name: str) -> bool:
    return any(option.name == name for option in METHODS[method].options)


def _has_own(method: str, *, essential: bool) -> bool:
    return any(option.essential == essential for option in METHODS[method].options)


def _option_field(option: Option, *, visible: bool) -> gr.Component:
    """A field for a method's own setting, by the type of its default."""
    label = _OPTION_LABELS.get(option.name) or option.name.replace("_", " ").capitalize()
    shown: dict[str, Any] = {"label": label, "info": option.help, "visible": visible, "elem_id": f"own-{option.name}"}
    if option.choices:
        return gr.Dropdown(list(option.choices), value=option.default, filterable=False, **shown)
    if isinstance(option.default, str):
        return gr.Textbox(option.default, max_lines=1, **shown)
    if option.high - option.low > 64:
        return gr.Number(option.default, minimum=option.low, maximum=option.high, precision=0, **shown)
    step = 1 if isinstance(option.default, int) else 0.01
    return gr.Slider(option.low, option.high, option.default, step=step, buttons=[], **shown)


def _pair_info(pair: ModelPair) -> str:
    size = sum(source.num_bytes for source in pair.parts().values())
    download = f" Download {size / 1e6:,.0f} MB." if size else ""
    gated = " and ".join(source.repo for source in pair.parts().values() if source.gated)
    account = f" To get it, accept the licence of {gated} on the Hub and log in: hf auth login." if gated else ""
    need = f"Needs {pair.memory_gb:.1f} GB." if pair.memory_gb else ""  # unknown of a model of one's own
    return f"{pair.summary or need}{download}{account}".strip()


def _method_choices(pair: ModelPair) -> list[tuple[str, str]]:
    """(title, name) of the methods this pair can run."""
    return [(method.title, method.name) for method in METHODS.values() if method.is_offered(pair)]


def _promise(name: str, temperature: Any, pair: ModelPair, verify: Any = "auto") -> str:
    """The line and the rest about the text's exactness, as JSON, for the component below "How to draft"."""
    method = get_method(name)
    greedy = isinstance(temperature, int | float) and temperature < GREEDY_BELOW
    word = "approximate" if verify in APPROXIMATE_RULES else method.exactness if greedy else "lossless"
    line, rest = _PROMISES["chains" if word == "exact" and method.is_chain is not None else word]
    absent = [method.title for method in METHODS.values() if not method.is_offered(pair)]
    return json.dumps([line, f"{rest} This pair has no draft for: {', '.join(absent)}." if absent else rest])
