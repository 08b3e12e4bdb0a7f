"""Tables of text in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["print_table", "show"]


def show(value: float | None, digits: int) -> str:
    """A figure with so many digits behind the point; – where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def print_table(lines: Sequence[Sequence[str]], num_left: int = 1) -> None:
    """Lines of as many texts each, the heads first. The first `num_left` columns begin on the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = (
            text.ljust(width) if i < num_left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
