"""Settings that belong to one method: declared beside it, checked before the run, shown by menu and command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.config import check_int, check_number
from specviz.errors import ConfigError

__all__ = ["Option", "read_options"]


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of one method.

    name: as in `RunConfig.options`; the command line's flag is --name with dashes. default: also says the type.
    low, high: inclusive range of a number. choices: of a text; empty for free text, which the method itself reads.
    help: one line with unit or meaning, for menu and command line.
    essential: the page shows it beside the method; others stand under "More settings".
    """

    name: str
    default: int | float | str
    help: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    essential: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> int | float | str:
        """`value` as this option's type and in its range. Raises ConfigError naming the option and the range."""
        name = self.flag.removeprefix("--")
        if isinstance(self.default, str):
            if not isinstance(value, str) or len(value) > 200:
                raise ConfigError(f"{name} must be a text of at most 200 characters; got {str(value)[:40]!r}.")
            if self.choices and value not in self.choices:
                raise ConfigError(f"{name} must be one of {', '.join(self.choices)}; got {value[:40]!r}.")
            return value
        if isinstance(self.default, int):
            return check_int(name, value, int(self.low), int(self.high))
        return check_number(name, value, self.low, self.high)


def read_options(method: str, options: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method by name, defaults filled in.

    Raises:
        ConfigError: a value out of range, or an option that this method does not have: a setting that would do nothing
        is refused rather than dropped (case 116).
    """
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"{method} has no option {name[:40]!r}; its own are: {has}.")
    return {name: option.check(given.get(name, option.default)) for name, option in known.items()}
