"""The whole page: head, tabs, the endpoint for programs, and how it is served."""

from __future__ import annotations

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when Gradio is imported

from typing import Any

import gradio as gr

from specviz.assets import read_asset
from specviz.trace import MAX_UPLOAD_BYTES
from specviz.ui.access.gate import gate, refuse_downloads, use_private_folder
from specviz.ui.access.host import EngineHost
from specviz.ui.access.space import reach_loopback_directly
from specviz.ui.access.visits import MAX_VISITS
from specviz.ui.charts import CHART_CSS
from specviz.ui.header import make_header
from specviz.ui.lab.charts import LAB_CSS
from specviz.ui.lab.tab import Lab
from specviz.ui.race.tab import Race
from specviz.ui.serving.tab import Serving
from specviz.ui.theme import NATIVE_CSS, THEME
from specviz.ui.tour.tab import connect_tour
from specviz.ui.view import VIEW_CSS
from specviz.ui.watch.tab import Watch
from specviz.ui.wire.api import add_api
from specviz.ui.wire.recorded import Recording, opening_run

__all__ = ["build_page", "launch"]

PAGE_CSS = read_asset("page.css")
CACHE_S = 3600
MAX_QUEUE = 32
"""Jobs that Gradio itself lets wait; visitors wait in the host's own, shorter line."""

# Gradio opens its sidebar on phones, where it covers the page; a run is to be seen there.
_CLOSE_SIDEBAR_JS = """() => {
  const shut = () => { if (innerWidth < 768) document.querySelector('.sidebar.open .toggle-button')?.click(); };
  setTimeout(shut, 50);
  setTimeout(shut, 400);
}"""

# Gradio opens a dropdown's list again when the keyboard leaves it, and there it stays, over the fields below.
_CLOSE_LISTS_JS = """() => {
  const close = (input) => input.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
  addEventListener('focusout', ({ target }) => {
    if (target.matches?.('input[role=combobox]')) setTimeout(close, 50, target);
  });
}"""

# Two dozen fields come before Run. The first stop of the keyboard leads past them.
_SKIP_LINK_JS = """() => {
  if (document.querySelector('.skiplink')) return;
  const link = document.createElement('a');
  Object.assign(link, { className: 'skiplink', href: '#run', textContent: 'Skip the settings' });
  link.addEventListener('click', (event) => {
    event.preventDefault();
    const goals = [...document.querySelectorAll('#run, #tabs [role=tab][aria-selected=true]')];
    goals.sort((one) => (one.id === 'run' ? -1 : 1)).find((goal) => goal.getClientRects().length)?.focus();
  });
  document.body.prepend(link);
}"""

# On tabs where the settings do nothing they fold away, and come back if the visitor did not fold them.
_FOLD_SETTINGS_JS = """() => {
  if (window.specvizFolds) return;
  window.specvizFolds = true;
  const IDLE = ['methods', 'tour', 'serving'];
  let isFolded = false; // by this, not by the visitor
  const follow = (tab) => {
    const isIdle = IDLE.includes(tab), isOpen = Boolean(document.querySelector('.sidebar.open'));
    if (innerWidth < 768 || (isIdle ? !isOpen : !isFolded || isOpen)) { if (!isIdle) isFolded = false; return; }
    isFolded = isIdle;
    document.querySelector('.sidebar .toggle-button')?.click();
  };
  addEventListener('specviz:tab', ({ detail }) => follow(detail));
  document.addEventListener('click', ({ isTrusted, target }) => {
    if (isTrusted && target.closest?.('.sidebar .toggle-button')) isFolded = false;
  });
  if (document.body.dataset.tab) follow(document.body.dataset.tab);
}"""

_TELL_VIEW_JS = "() => { window.dispatchEvent(new CustomEvent('specviz:tab', { detail: '%s' })); }"


def build_page(host: EngineHost, recording: Recording | None = None) -> gr.Blocks:
    """The page around an engine; `recording` plays until somebody runs something, the stored one if none is given."""
    refuse_downloads()
    use_private_folder()
    watch = Watch(host, recording or opening_run())
    lab = Lab(watch)
    serving = Serving(list(host.servers.values()))
    with gr.Blocks(title="specviz", fill_width=True, delete_cache=(CACHE_S, CACHE_S), analytics_enabled=False) as demo:
        with gr.Sidebar(label="Settings", width=320):
            watch.sidebar()
        race = Race(host, watch.fields, watch.offered())
        header = make_header(host.status)
        with gr.Tabs(selected="watch", elem_id="tabs"):
            with _tab("watch", "Watch"):
                pass
            with _tab("inspect", "Inspect"):
                pass
            with _tab("race", "Race") as race_tab:
                race.toolbar()
            with _tab("lab", "Lab") as lab_tab:
                lab.main()
            with _tab("methods", "Methods"):
                pass
            with _tab("tour", "Tour") as tour_tab:
                pass
            with _tab("serving", "Serving") as serving_tab:
                serving.main()
        watch.toolbar()
        watch.main()
        watch.connect(demo, header)
        lab.connect(demo, lab_tab, header)
        race.connect(demo, race_tab, watch.view, header)
        connect_tour(tour_tab, watch.view)
        serving.connect(serving_tab)
        add_api(host)
        gr.on([demo.load, watch.run.click], None, None, None, js=_CLOSE_SIDEBAR_JS, api_visibility="private")
        demo.load(None, None, None, js=_CLOSE_LISTS_JS, api_visibility="private")
        demo.load(None, None, None, js=_SKIP_LINK_JS, api_visibility="private")
        demo.load(None, None, None, js=_FOLD_SETTINGS_JS, api_visibility="private")
    return demo.queue(max_size=MAX_QUEUE, api_open=False)


def _tab(name: str, title: str) -> gr.Tab:
    """A tab; the view below the tabs shows the panel of that name, if it has one."""
    tab = gr.Tab(title, id=name, elem_id=f"tab-{name}")
    tab.select(None, None, None, js=_TELL_VIEW_JS % name, api_visibility="private")
    return tab


def launch(demo: gr.Blocks, **options: Any) -> tuple[Any, str, str]:
    """Serve the page with everything off that it does not need: analytics, history, monitoring, error texts."""
    settings: dict[str, Any] = {
        "theme": THEME,
        "css": VIEW_CSS + NATIVE_CSS + CHART_CSS + LAB_CSS + PAGE_CSS,
        "footer_links": ["api"],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "pwa": False,
        "share": False,
        "show_error": False,
        "quiet": True,
        "max_file_size": MAX_UPLOAD_BYTES,
        "app_kwargs": gate(),
        "state_session_capacity": MAX_VISITS,  # Gradio keeps 0.4 MB of each page, and never lets go of a closed one
    }
    reach_loopback_directly()
    app, local, shared = demo.launch(**(settings | options))
    return app, local, shared
