"""A recorded run as a picture that moves: the strip at its real speed, for slides. GIF or WebP, by Pillow.

All text is laid out once, then shown step by step, so no word ever moves; a long text scrolls by lines. Letters are the
page's, which Gradio brings along; what they lack comes from the system's fonts, else stands as an empty box.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from specviz.assets import read_asset
from specviz.errors import TraceError
from specviz.events import DraftedToken, EmittedToken, Event, PrefillDone, StepDone
from specviz.metrics import Baseline, Counters
from specviz.trace import Trace
from specviz.ui.saved.page import whole_events
from specviz.words import verdict

__all__ = ["FORMATS", "MAX_SHOWN_S", "SPEEDS", "draw_run"]

FORMATS = ("gif", "webp")
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Times the run's own speed; any but 1 is said in the picture."""

MAX_SHOWN_S = 30.0
"""Of the picture: a longer run is shown so far, and the picture says how much of it that is."""

_FRAMES_PER_S = 20.0
_MAX_FRAMES = 300
_HOLD_MS = 3000  # the whole, before it begins again
_WIDTH, _PAD, _SIZE, _LEADING, _MAX_LINES = 960, 28, 22, 52, 7
_HEAD, _FOOT = 112, 64
_MAX_LETTERS = 200  # of one token
_MAX_SQUARES = 6
_FATES = ("accepted", "corrected", "bonus", "target", "rejected", "discarded")
_FALLBACKS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "arial.ttf", "Arial Unicode.ttf", "msyh.ttc", "malgun.ttf")
_UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")

Colour = tuple[int, int, int]


@dataclass(slots=True)
class _Piece:
    """Letters of one token on one line. step: 0 for what came with the prompt. note: the refused word above it."""

    text: str
    origin: str
    step: int
    note: str = ""
    squares: int = 0
    line: int = 0
    x: float = 0.0
    width: float = 0.0


@dataclass(slots=True)
class _Moment:
    """What a frame shows: so many steps, at this second of the run, with these counts of fates."""

    at_s: float
    step: int
    counts: dict[str, int] = field(default_factory=dict)


def draw_run(trace: Trace, format_name: str = "gif", *, dark: bool = False, speed: float = 1.0) -> bytes:
    """The run as an animated picture.

    Args:
        format_name: one of FORMATS. speed: one of SPEEDS.
    Raises:
        TraceError: a run without a step.
    """
    assert format_name in FORMATS and speed in SPEEDS
    events = whole_events(trace)
    moments = _moments(events)
    if len(moments) < 2:
        raise TraceError("This run has no step, so there is nothing to show in a picture.")
    shown = _thinned(moments, speed)
    frames = list(_frames(trace, events, moments, shown, _palette(dark), speed))
    ends = [moment.at_s / speed * 1000 for moment in shown]
    # rounded sums, not rounded parts: hundredths of a second are all that a GIF knows, and their errors would add up
    marks = [round(end / 10) * 10 for end in ends]
    durations = [max(20, later - now) for now, later in itertools.pairwise(marks)] + [_HOLD_MS]
    out = BytesIO()
    flat = _flattened(frames, _palette(dark)["bg"])
    if format_name == "webp":
        first, *more = [frame.convert("RGB") for frame in flat]
        common = {"append_images": more, "duration": durations, "loop": 0}
        first.save(out, "WEBP", save_all=True, lossless=True, minimize_size=True, **common)
    else:
        flat[0].save(out, "GIF", save_all=True, append_images=flat[1:], duration=durations, loop=0, disposal=1)
    return out.getvalue()


def _flattened(frames: Sequence[Image.Image], ground: Colour) -> list[Image.Image]:
    """In at most 256 colours: those of the last frame, in which every fate has occurred, and the very ground.

    Each colour becomes the nearest of them. Pillow's own search is coarse: it gave a white sheet a neighbour of white.
    """
    listed = (frames[-1].quantize(255, dither=Image.Dither.NONE).getpalette() or [])[: 3 * 255]
    palette = np.array([*listed, *ground], np.int32).reshape(-1, 3)
    nearest = np.full(1 << 24, -1, np.int16)  # by red, green and blue in one number
    out = []
    for frame in frames:
        parts = np.asarray(frame, np.int32)
        whole = parts[..., 0] << 16 | parts[..., 1] << 8 | parts[..., 2]
        for colour in np.unique(whole[nearest[whole] < 0]):
            own = np.array([colour >> 16, colour >> 8 & 255, colour & 255])
            nearest[colour] = ((palette - own) ** 2).sum(axis=1).argmin()
        flat = Image.fromarray(nearest[whole].astype(np.uint8), "P")
        flat.putpalette(palette.astype(np.uint8).tobytes())
        out.append(flat)
    return out


# --- time ------------------------------------------------------------------------------------------------------------


def _moments(events: Sequence[Event]) -> list[_Moment]:
    """The start of decoding, then the end of each step."""
    counters, counts = Counters(), dict.fromkeys(_FATES, 0)
    out: list[_Moment] = []
    for event in events:
        counters.update(event)
        if isinstance(event, PrefillDone):
            out.append(_Moment(0.0, 0, dict(counts)))
        elif isinstance(event, StepDone):
            for token in event.emitted:
                counts[token.origin] = counts.get(token.origin, 0) + 1
            for drafted in event.drafted:
                if drafted.fate in ("rejected", "discarded"):
                    counts[drafted.fate] += 1
            out.append(_Moment(counters.decode_s, len(out), dict(counts)))
    return out


def _thinned(moments: Sequence[_Moment], speed: float) -> list[_Moment]:
    """Those that get a frame: not more than an eye or a file can take, the first and the last shown among them."""
    last_s = min(moments[-1].at_s, MAX_SHOWN_S * speed)
    within = [moment for moment in moments if moment.at_s <= last_s]
    gap = max(speed / _FRAMES_PER_S, last_s / (_MAX_FRAMES - 2))
    out = [within[0]]
    for moment in within[1:-1]:
        if moment.at_s - out[-1].at_s >= gap:
            out.append(moment)
    return out if len(within) < 2 else [*out, within[-1]]


# --- letters ---------------------------------------------------------------------------------------------------------


@cache
def _fonts(size: int, bold: bool = False) -> tuple[Any, ...]:
    """The page's letters, then whatever the system has for other scripts."""
    found: list[Any] = []
    spec = find_spec("gradio")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        name = f"IBMPlexSans-{'Bold' if bold else 'Regular'}.woff2"
        _try_font(found, Path(folder) / "templates" / "frontend" / "static" / "fonts" / "IBMPlexSans" / name, size)
    if not found:
        found.append(ImageFont.load_default(size))
    for fallback in _FALLBACKS:
        _try_font(found, fallback, size)
    return tuple(found)


def _try_font(found: list[Any], name: str | Path, size: int) -> None:
    try:
        found.append(ImageFont.truetype(str(name), size))
    except OSError:
        return


@cache
def _font_of(letter: str, size: int, bold: bool) -> Any:
    fonts = _fonts(size, bold)
    if letter.isascii():
        return fonts[0]
    return next((font for font in fonts if bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))), fonts[0])


def _runs(text: str, size: int, bold: bool) -> Iterator[tuple[str, Any]]:
    """The text in parts of one font each."""
    part, font = "", None
    for letter in text:
        own = _font_of(letter, size, bold)
        if own is not font and part:
            yield part, font
            part = ""
        part, font = part + letter, own
    if part:
        yield part, font


def _length(text: str, size: int = _SIZE, bold: bool = False) -> float:
    return sum(float(font.getlength(part)) for part, font in _runs(text, size, bold))


# --- layout ----------------------------------------------------------------------------------------------------------


def _shown_text(token: EmittedToken | DraftedToken) -> str:
    return _UNSEEN.sub("\u00b7", token.label or token.text)[:_MAX_LETTERS]


def _laid_out(events: Sequence[Event]) -> list[_Piece]:
    """Pieces with their places. A word of several tokens stays on one line."""
    pieces: list[_Piece] = []
    word: list[_Piece] = []
    place = [0, 0.0]  # line, x

    def put() -> None:
        width = sum(piece.width for piece in word)
        if place[1] and place[1] + width > _WIDTH - 2 * _PAD:
            place[:] = [place[0] + 1, 0.0]
        for piece in word:
            if place[1] and place[1] + piece.width > _WIDTH - 2 * _PAD:
                place[:] = [place[0] + 1, 0.0]
            piece.line, piece.x = int(place[0]), place[1]
            place[1] += piece.width
        pieces.extend(word)
        word.clear()

    for piece in _pieces_of(events):
        for part in re.findall(r"\n| +|[^ \n]{1,48}", piece.text):
            if part == "\n":
                put()
                place[:] = [place[0] + 1, 0.0]
                continue
            own = _Piece(part, piece.origin, piece.step, piece.note, piece.squares, width=_length(part))
            if part.isspace():
                put()
                own.line, own.x = int(place[0]), place[1]
                place[1] += own.width
                pieces.append(own)
            else:
                piece.note, piece.squares = "", 0
                word.append(own)
    put()
    return pieces


def _pieces_of(events: Sequence[Event]) -> Iterator[_Piece]:
    number = 0
    for event in events:
        if isinstance(event, PrefillDone):
            yield from (_Piece(_shown_text(token), token.origin, 0) for token in event.emitted)
        elif isinstance(event, StepDone):
            number += 1
            refused = [token for token in event.drafted if token.fate == "rejected"]
            untested = sum(token.fate == "discarded" for token in event.drafted)
            for i, token in enumerate(event.emitted):
                piece = _Piece(_shown_text(token), token.origin, number)
                if i == len(event.emitted) - 1:
                    piece.squares = untested
                    if refused:
                        piece.note = _shown_text(refused[0]).strip()[:16] or "space"
                        piece.note += f" +{len(refused) - 1}" if len(refused) > 1 else ""
                yield piece


# --- drawing ---------------------------------------------------------------------------------------------------------


@cache
def _palette(dark: bool) -> dict[str, Colour]:
    """The page's own colours."""
    light_rules, dark_rules = read_asset("tokens.css").split("\n.dark {")
    rules = light_rules + (dark_rules if dark else "")
    found = re.findall(r"--sv-([\w-]+):\s*#([0-9A-Fa-f]{6})\b", rules)
    return {name: (int(hexa[:2], 16), int(hexa[2:4], 16), int(hexa[4:], 16)) for name, hexa in found}


def _frames(
    trace: Trace,
    events: Sequence[Event],
    moments: Sequence[_Moment],
    shown: Sequence[_Moment],
    colours: dict[str, Colour],
    speed: float,
) -> Iterator[Image.Image]:
    pieces = _laid_out(events)
    num_lines = 1 + max((piece.line for piece in pieces), default=0)
    height = _HEAD + min(num_lines, _MAX_LINES) * _LEADING + _FOOT
    started, counters = trace.started, Counters()
    for event in events:
        counters.update(event)
    words = verdict(started, counters, Baseline.of(trace.plain, events), recorded=True)
    origin = " · ".join(
        str(part)
        for part in ("specviz", started.pair, started.method, started.dtype, started.machine.get("processor"))
        if part
    )
    for moment in shown:
        sheet = Image.new("RGB", (_WIDTH, height), colours["bg"])
        pen = ImageDraw.Draw(sheet)
        _write(pen, (_PAD, 20), f"{words['headline']} {words['rest']}"[:90], 22, colours["ink"], bold=True)
        _legend(pen, moment.counts, colours)
        seen = [piece for piece in pieces if piece.step <= moment.step]
        first = max(0, (seen[-1].line if seen else 0) - _MAX_LINES + 1)
        _strip(pen, [piece for piece in seen if piece.line >= first], first, colours)
        _write(pen, (_PAD, height - 50), _clock(moment, moments[-1], shown[-1], speed), 15, colours["ink-2"])
        _write(pen, (_PAD, height - 28), origin[:120], 13, colours["ink-3"])
        yield sheet


def _clock(moment: _Moment, end: _Moment, last: _Moment, speed: float) -> str:
    pace = "shown at its real speed"
    if speed != 1:
        pace = f"shown {1 / speed:g} times slower" if speed < 1 else f"shown {speed:g} times faster"
    cut = "" if last is end else f", the first {last.at_s:.0f} s of it"
    return f"{moment.at_s:.2f} s of {end.at_s:.2f} s, {pace}{cut}"


def _write(
    pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int, ink: Colour, *, bold: bool = False
) -> float:
    """Draws from the left end of the base line's box; returns where the text ends."""
    x, y = at
    text = _UNSEEN.sub("\u00b7", text).replace("\n", " ")
    for part, font in _runs(text, size, bold):
        pen.text((x, y + size), part, fill=ink, font=font, anchor="ls")
        x += float(font.getlength(part))
    return x


def _legend(pen: ImageDraw.ImageDraw, counts: dict[str, int], colours: dict[str, Colour]) -> None:
    """Every fate that occurs by its name, its sign and its count, so that colour is not the only cue."""
    x = float(_PAD)
    for fate in _FATES:
        if fate == "target" and not counts[fate]:
            continue
        box = (x, 68, x + 10, 78)
        hollow = fate == "discarded"
        pen.rectangle(box, fill=None if hollow else colours[f"{fate}-line"], outline=colours[f"{fate}-line"])
        end = _write(pen, (x + 16, 62), f"{fate} {counts[fate]}", 15, colours[f"{fate}-text"])
        if fate == "rejected":
            pen.line((x + 16, 73, x + 16 + _length("rejected", 15), 73), fill=colours["rejected-line"])
        x = end + 24


def _strip(pen: ImageDraw.ImageDraw, pieces: Sequence[_Piece], first: int, colours: dict[str, Colour]) -> None:
    note_end = (-1, 0.0)  # line, x: notes never overlap
    for piece in pieces:
        x, y = _PAD + piece.x, _HEAD + (piece.line - first) * _LEADING + 14
        low = y + _SIZE + 8
        if piece.origin != "accepted" and not piece.text.isspace():
            pen.rectangle((x - 1, y, x + piece.width + 1, low), fill=colours[f"{piece.origin}-tint"])
        _write(pen, (x, y), piece.text, _SIZE, colours["ink"])
        if not piece.text.isspace():
            _underline(pen, piece, x, low, colours)
        if piece.note or piece.squares:
            free = note_end[1] if note_end[0] == piece.line else 0.0
            note_end = (piece.line, _note(pen, piece, max(x, free), x, y - 2, colours))


def _underline(pen: ImageDraw.ImageDraw, piece: _Piece, x: float, y: float, colours: dict[str, Colour]) -> None:
    ink, end = colours[f"{piece.origin}-line"], x + piece.width
    if piece.origin == "bonus":  # dashed
        at = x
        while at < end:
            pen.line((at, y, min(at + 5, end), y), fill=ink, width=3)
            at += 8
    else:
        pen.line((x, y, end, y), fill=ink, width={"accepted": 2, "corrected": 4}.get(piece.origin, 1))


def _note(
    pen: ImageDraw.ImageDraw, piece: _Piece, x: float, own_x: float, y: float, colours: dict[str, Colour]
) -> float:
    """The refused word, struck, and a hollow square for each draft never tested; a cross where there is no room."""
    size, red = 13, colours["rejected-text"]
    squares = min(piece.squares, _MAX_SQUARES)
    more = f"+{piece.squares - squares}" if piece.squares > squares else ""
    width = _length(piece.note, size) + 10 * squares + _length(more, size) + 6
    if x > own_x + 1 or x + width > _WIDTH - 4:
        end = own_x + _length("×", size)
        if x <= own_x + 1 or end > x:
            _write(pen, (max(x, own_x), y - size - 1), "×", size, red)
        return max(x, end) + 6
    end = x
    if piece.note:
        end = _write(pen, (x, y - size - 1), piece.note, size, red)
        pen.line((x, y - 5, end, y - 5), fill=colours["rejected-line"])
        end += 4
    for _ in range(squares):
        pen.rectangle((end, y - 8, end + 6, y - 2), outline=colours["discarded-line"])
        end += 10
    return (_write(pen, (end, y - size - 1), more, size, colours["discarded-text"]) if more else end) + 6
