"""A visitor's experiment from the press of the button to its last figure. No Gradio in here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from specviz.lab.experiment import Ask, Measure, Report, conduct
from specviz.ui.access.host import EngineHost, Notice
from specviz.ui.access.visits import Visit
from specviz.ui.problems import sentence_for
from specviz.ui.settings import WatchSettings

__all__ = ["measure_live"]


def measure_live(
    host: EngineHost, visit: Visit, settings: WatchSettings, ask: Ask, measure: Measure
) -> Iterator[Report]:
    """Waits for the engine, then conducts; a failure is the text of the last report.

    Closing this at any yield gives the engine back. `visit.ask_to_stop` ends the experiment, what is there stays.
    """
    try:
        with visit.running() as stop, closing(host.turn_here(settings.pair, settings.dtype, stop.is_set)) as turn:
            for item in turn:
                if not isinstance(item, Notice):
                    yield from conduct(measure, item, ask, stop.is_set, settings.config.time_limit_s)
                    return
                yield Report(item.text, item.fraction or 0.0)
            yield Report("Stopped before it began. The page is unchanged.", 0.0)
    except Exception as error:
        yield Report(sentence_for(error), 0.0)
