"""Named model pairs: what runs, how large it is, under which licence, and where its weights come from."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specviz.assets import ASSETS
from specviz.config import DRAFT_QUANTS
from specviz.errors import ConfigError

__all__ = [
    "DRAFT_QUANTS",
    "ModelPair",
    "WeightSource",
    "WheelSource",
    "check_hub_id",
    "custom_pair",
    "default_pair_name",
    "get_pair",
    "load_catalog",
]

CATALOG_FILE = ASSETS / "catalog.toml"

_HUB_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_CUSTOM = "custom--"
"""Begins the name of every pair that is not of the catalog; no id of the Hub has two hyphens."""

_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A model file inside a Python wheel. sha256: of the wheel; gguf_sha256: of the file at path `gguf` within it."""

    package: str
    version: str
    filename: str
    sha256: str
    gguf: str
    gguf_sha256: str


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where one model's weights come from: a wheel, else a local folder, else the Hub's `repo` at `revision`.

    num_params: trained numbers, shared ones counted once; 0 where unknown. num_bytes: size of the download.
    gated: its licence has to be accepted on the Hub by a logged-in user.
    """

    repo: str
    revision: str = ""
    licence: str = ""
    num_params: int = 0
    num_bytes: int = 0
    gated: bool = False
    wheel: WheelSource | None = None
    folder: str = ""

    @property
    def name(self) -> str:
        """The model's own name, without its owner."""
        return self.repo.rsplit("/", 1)[-1]

    @property
    def words(self) -> str:
        """What names it on the command line. Of a folder its own name only: traces are shared, and tell no path."""
        return self.repo if self.folder or self.revision in ("", "main") else f"{self.repo}@{self.revision}"


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target and what drafts for it. draft: None for a copy of the target itself.

    draft_quant: how the draft is held unless asked otherwise: one of DRAFT_QUANTS, or auto for what is fastest.
    drafts: the methods that specviz brings a trained draft for, in assets/drafts/<name>/<method>/.
    memory_gb: 10^9 bytes a run needs in bfloat16 with that draft, Python and its libraries included.
    """

    name: str
    title: str
    target: WeightSource
    draft: WeightSource | None = None
    draft_quant: str = "auto"
    drafts: tuple[str, ...] = ()
    memory_gb: float = 0.0
    summary: str = ""

    @property
    def licence(self) -> str:
        """The licence or, where they differ, both licences."""
        licences = [self.target.licence] + ([self.draft.licence] if self.draft else [])
        return ", ".join(dict.fromkeys(text for text in licences if text))

    @property
    def gated(self) -> bool:
        return self.target.gated or (self.draft is not None and self.draft.gated)

    def words(self) -> list[str]:
        """What names this pair on the command line."""
        if not self.name.startswith(_CUSTOM):
            return ["--pair", self.name]
        return [word for part, source in self.parts().items() for word in (f"--{part}", source.words)]

    def parts(self) -> dict[str, WeightSource]:
        """The models to fetch, by the name of their folder: target, and draft where it is a model of its own."""
        return {"target": self.target} | ({"draft": self.draft} if self.draft else {})


@cache
def _catalog() -> tuple[str, dict[str, ModelPair]]:
    data = tomllib.loads(CATALOG_FILE.read_text(encoding="utf-8"))
    return data["default"], {name: _pair(name, entry) for name, entry in data["pairs"].items()}


def load_catalog() -> dict[str, ModelPair]:
    """All named pairs, in the order of the file, the default first."""
    return dict(_catalog()[1])


def default_pair_name() -> str:
    """The pair that runs when none is named."""
    return _catalog()[0]


def get_pair(name: str) -> ModelPair:
    """The pair of that name. Raises ConfigError, listing the names, where there is none."""
    pairs = _catalog()[1]
    pair = pairs.get(name)
    if pair is None:
        raise ConfigError(f"There is no model pair {str(name)[:60]!r}. Choose one of: {', '.join(pairs)}.")
    return pair


def custom_pair(target: str, draft: str | None = None, *, draft_quant: str = "auto", local: bool = False) -> ModelPair:
    """A pair that is not in the catalog, from ids of the Hub such as `owner/name` or `owner/name@revision`.

    local: take existing folders too. Only for words typed on this machine's own command line: a visitor of the page
    must not choose what is read from its disk.

    Raises:
        ConfigError: neither a Hub id nor, where allowed, a folder; or an unknown draft_quant.
    """
    if draft_quant != "auto":
        check_quant(draft_quant)
    sources = [_custom_source(text, local) for text in (target, draft) if text is not None]
    name = "--".join(
        re.sub(r"[^A-Za-z0-9._-]+", "--", f"{s.repo}@{s.revision}" if s.revision else s.repo) for s in sources
    )
    return ModelPair(
        name=_CUSTOM + name,
        title=" with ".join(source.name for source in sources),
        target=sources[0],
        draft=sources[1] if len(sources) > 1 else None,
        draft_quant=draft_quant,
    )


def check_hub_id(repo: str) -> str:
    """`repo` if it has the form of a Hub id, `owner/name` or an old plain `name`.

    Paths and URLs are refused here (case 90), so nothing outside the catalog can name a file of this machine.
    """
    parts = repo.split("/")
    fits = len(repo) <= 96 and 1 <= len(parts) <= 2 and all(_HUB_PART.fullmatch(part) for part in parts)
    if not fits or ".." in repo or "--" in repo or repo.endswith(".git"):
        raise ConfigError(
            f"{repo[:80]!r} is not an id of the Hugging Face Hub. Write it as owner/name, for example "
            "HuggingFaceTB/SmolLM2-135M-Instruct; paths and addresses are not accepted."
        )
    return repo


def check_quant(quant: str) -> str:
    """`quant` if it is one of DRAFT_QUANTS, else ConfigError."""
    if quant not in DRAFT_QUANTS:
        raise ConfigError(f"A draft is held as one of {', '.join(DRAFT_QUANTS)}; got {str(quant)[:40]!r}.")
    return quant


def _custom_source(text: str, local: bool) -> WeightSource:
    if local and (folder := Path(text).expanduser()).is_dir():
        folder = folder.resolve()
        return WeightSource(repo=folder.name, folder=str(folder))
    if local and (text.startswith((".", "~")) or folder.is_absolute() or "\\" in text):
        raise ConfigError(f"There is no folder {text[:200]!r}. Check the path, or name a model of the Hub: owner/name.")
    repo, _, revision = text.partition("@")
    revision = revision or "main"  # the commit that it stands for is written down when the files are fetched
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ConfigError(f"{revision[:80]!r} is not a revision. Write a commit, tag or branch without slashes.")
    return WeightSource(repo=check_hub_id(repo), revision=revision)


def _pair(name: str, entry: dict[str, Any]) -> ModelPair:
    fields = {key: value for key, value in entry.items() if key not in ("target", "draft")}
    fields["drafts"] = tuple(fields.get("drafts", ()))
    draft = _source(entry["draft"]) if "draft" in entry else None
    pair = ModelPair(name=name, target=_source(entry["target"]), draft=draft, **fields)
    if pair.draft_quant != "auto":
        check_quant(pair.draft_quant)
    return pair


def _source(entry: dict[str, Any]) -> WeightSource:
    wheel = WheelSource(**entry["wheel"]) if "wheel" in entry else None
    source = WeightSource(**{key: value for key, value in entry.items() if key != "wheel"}, wheel=wheel)
    check_hub_id(source.repo)
    return source
