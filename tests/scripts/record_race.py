"""Measure a race and store it as the one the tab "Race" opens on.

    python tests/scripts/record_race.py [--prompt copying] [--methods cascade prompt-lookup feature] [--out FOLDER]

Writes one trace a lane. Run it while nothing else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import Visit
from specviz.ui.presets import load_regimes
from specviz.ui.race.lanes import save_lanes, to_csv
from specviz.ui.race.racing import RaceEncoder, RaceSettings, run_race
from specviz.ui.race.tab import RECORDED_RACE
from specviz.ui.race.words import race_verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    regimes = {regime.name: regime.prompts[0] for regime in load_regimes()}
    parser.add_argument("--prompt", choices=regimes, default="copying", help="the first of these presets")
    parser.add_argument("--methods", nargs="+", default=["prompt-lookup", "feature", "cascade"])
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=RECORDED_RACE)
    options = parser.parse_args()
    host, encoder = EngineHost(), RaceEncoder()
    values = {"prompt": regimes[options.prompt], "max_new_tokens": options.max_new_tokens}
    settings = RaceSettings.read(values, options.methods, list(host.pairs))
    for text in run_race(host, Visit(), settings, encoder):
        race = json.loads(text)["race"]
        print(race.get("problem") or race.get("status", {}).get("text", ""), file=sys.stderr)
    host.close()
    if not encoder.is_done:
        return 1
    said = race_verdict(encoder.lanes)
    print(said["headline"], said["texts"])
    print(to_csv(encoder.lanes))
    save_lanes(options.out, encoder.lanes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
