"""The view's scripts share one scope: a name that two of them define would silently be the later one's."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from specviz.ui.view import _SCRIPTS, PANELS

VIEW = Path(__file__).resolve().parents[1] / "assets" / "view"
DEFINES = re.compile(r"^(?:async )?(?:const|let|function\*?|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)


def test_no_name_is_defined_twice() -> None:
    names = Counter(name for script in _SCRIPTS for name in DEFINES.findall((VIEW / f"{script}.js").read_text("utf-8")))
    assert len(names) > 100
    assert [name for name, times in names.items() if times > 1] == []


def test_every_file_of_the_view_is_used() -> None:
    """`serving` is a component of its own."""
    wanted = {f"serving/serving.{kind}" for kind in ("js", "html", "css")}
    wanted |= {f"{script}.js" for script in _SCRIPTS} | {f"{panel}/{panel}.html" for panel in PANELS}
    wanted |= {f"{panel}/{panel}.css" for panel in PANELS[1:]} | {"view.html", "view.css", "present.css"}
    assert {path.relative_to(VIEW).as_posix() for path in VIEW.rglob("*") if path.is_file()} == wanted
