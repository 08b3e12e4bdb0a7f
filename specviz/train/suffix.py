"""Making a suffix index of a corpus, and measuring what it adds on topics it has not seen.

The same corpus and settings give the same file, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specviz.config import SamplingParams, check_int, check_number
from specviz.drafters.base import DraftContext
from specviz.drafters.suffix import INDEX_FILE, SuffixDrafter
from specviz.drafters.suffix_index import SuffixIndex
from specviz.errors import ConfigError
from specviz.models.catalog import ModelPair, get_pair
from specviz.models.convert import Progress
from specviz.models.fetch import silent
from specviz.models.stored import own_folder
from specviz.train.corpus import Corpus, read_corpus
from specviz.train.ngrams import CARD_FILE, MAX_FILE_MB, target_reader

__all__ = ["LEAD", "SuffixScore", "make_index", "rehearse", "train_suffix"]

LEAD = 4
"""Tokens of each prompt that stand before its answer, so that an answer's first words are known by their place."""

GAMMA = 5
MAX_REHEARSED = 200

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SuffixScore:
    """Greedy decoding played on answers that are known already: what a target with just these answers would do.

    sources: run, answers or both. draft_ms: mean milliseconds of one proposal.
    """

    sources: str
    num_texts: int
    num_tokens: int
    num_steps: int
    num_drafted: int
    num_accepted: int
    draft_ms: float

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / self.num_steps if self.num_steps else 0.0


def make_index(
    corpus: Corpus, sequences: Sequence[int], vocab_size: int, *, max_tokens: int = 0, target_sha256: str = ""
) -> SuffixIndex:
    """The answers of these sequences, each behind the last LEAD tokens of its prompt.

    Args:
        max_tokens: so many at most; later texts are left out. 0 is no limit.
    Raises:
        ConfigError: not one text is left.
    """
    kind: Any = np.uint16 if vocab_size < 1 << 16 else np.uint32
    end = np.array([np.iinfo(kind).max], kind)
    parts: list[_Array] = []
    size = 0
    for i in sequences:
        start = int(corpus.offsets[i]) + max(0, int(corpus.prompt_len[i]) - LEAD)
        text = corpus.tokens[start : int(corpus.offsets[i + 1])]
        if not len(text):
            continue
        if max_tokens and size + len(text) + 1 > max_tokens:
            break
        parts += [text.astype(kind), end]
        size += len(text) + 1
    if not parts:
        raise ConfigError("The index would be empty: no text is left, or the first one is longer than the limit.")
    return SuffixIndex(np.concatenate(parts), vocab_size, target_sha256=target_sha256)


def rehearse(
    index: SuffixIndex | None, corpus: Corpus, sequences: Sequence[int], *, gamma: int = GAMMA, **settings: Any
) -> SuffixScore:
    """Play greedy runs on the corpus's own answers.

    Args:
        settings: of `SuffixDrafter`.
    """
    drafter = SuffixDrafter(index, **settings)
    params, rng = SamplingParams(), torch.Generator()
    tokens = steps = num_drafted = num_accepted = 0
    seconds = 0.0
    for i in sequences:
        text = corpus.tokens[int(corpus.offsets[i]) : int(corpus.offsets[i + 1])].astype(np.int64).tolist()
        done = max(1, int(corpus.prompt_len[i]))
        drafter.reset(text[:done])
        while done < len(text):
            most = min(gamma, len(text) - done - 1)
            began = time.perf_counter()
            proposal = drafter.propose(DraftContext(text[:done], params), most, rng) if most else None
            seconds += time.perf_counter() - began
            kept, children = -1, proposal.children_of() if proposal else {}
            depth = 0
            while proposal is not None:  # the loop's walk, with the text's own next token for the target's
                following = [n for n in children.get(kept, ()) if int(proposal.token_ids[n]) == text[done + depth]]
                if not following:
                    break
                kept, depth = following[0], depth + 1
            num_drafted += len(proposal) if proposal else 0
            num_accepted += depth
            tokens += depth + 1
            steps += 1
            done += depth + 1
    drafter.close()
    sources = str(settings.get("sources", "both"))
    pace = 1e3 * seconds / steps if steps else 0.0
    return SuffixScore(sources, len(sequences), tokens, steps, num_drafted, num_accepted, pace)


def train_suffix(
    files: Sequence[Path],
    pair: str,
    out: Path | None = None,
    *,
    max_tokens: int = 0,
    max_mb: float = 6.0,
    hold_out: Sequence[int] = (),
    progress: Progress | None = None,
) -> Path:
    """Make a pair's index and its card.

    Args:
        files: the corpus, see `specviz.train.corpus`.
        out: folder to write into; None for the one in the cache where runs look first.
        max_tokens: of the index; 0 is no limit.
        max_mb: 10^6 bytes the file may have; a larger one is refused.
        hold_out: topics to leave out besides every eighth.
    Returns:
        The folder.
    Raises:
        ConfigError: a setting out of range, an unknown pair, a corpus that cannot be read, a file too large.
        ModelLoadError: the pair's tokenizer cannot be fetched.
    """
    max_tokens = check_int("max-tokens", max_tokens, 0, 1_000_000_000)
    max_mb = check_number("max-mb", max_mb, 0.01, 100 * MAX_FILE_MB)
    entry = get_pair(pair)
    report = progress or silent
    tokenizer, vocab_size, sha256 = target_reader(entry, report)

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    corpus = read_corpus(files, encode, vocab_size, lambda text, part: report(text, 0.3 * part))
    held = np.flatnonzero(np.isin(corpus.topic, corpus.held_topics))
    kept_back = np.isin(corpus.topic, [*corpus.held_topics.tolist(), *hold_out])
    report("Sorting", 0.3)
    index = make_index(corpus, np.flatnonzero(~kept_back).tolist(), vocab_size, max_tokens=max_tokens)
    judged = held[:: -(-len(held) // MAX_REHEARSED)].tolist() if len(held) else []
    scores: list[SuffixScore] = []
    for done, sources in enumerate(("run", "answers", "both") if judged else ()):
        report("Measuring on the topics kept back", 0.5 + 0.15 * done)
        scores.append(rehearse(index, corpus, judged, sources=sources))
    about = {
        "corpus": ", ".join(corpus.names),
        "pair": pair,
        "num_tokens": len(index),
        "num_texts": int((index.tokens == index.separator).sum()),
        "num_held_topics": len(corpus.held_topics),
        "scores": [{k: v for k, v in asdict(score).items() if k != "draft_ms"} for score in scores],
    }
    index = SuffixIndex(index.tokens, vocab_size, target_sha256=sha256, about=about, order=index.order)
    folder = own_folder(pair, SuffixDrafter.name) if out is None else out
    index.save(folder / INDEX_FILE)
    size = (folder / INDEX_FILE).stat().st_size
    if size > max_mb * 1e6:
        (folder / INDEX_FILE).unlink()
        raise ConfigError(
            f"The index would have {size / 1e6:.1f} MB, more than --max-mb {max_mb:g}. Allow more, or choose "
            f"--max-tokens {int(len(index) * max_mb * 1e6 / size)}."
        )
    (folder / CARD_FILE).write_text("\n".join(_card(entry, index, scores, size)) + "\n", encoding="utf-8")
    report(f"{len(index)} tokens of {about['num_texts']} texts", 1.0)
    return folder


def _card(pair: ModelPair, index: SuffixIndex, scores: Sequence[SuffixScore], size: int) -> Iterator[str]:
    about = index.about
    yield f"# Suffix index of {pair.name}"
    yield ""
    yield "For `suffix`: texts of the target, searched for what followed a run's last tokens. The file holds the"
    yield "tokens; their order is made when it is loaded."
    yield ""
    yield f"- Target: {pair.target.name}, weights {index.target_sha256 or 'without a recorded hash'}"
    yield f"- Vocabulary: {index.vocab_size} ids"
    yield f"- Corpus: {about['corpus']}; {about['num_texts']} texts, {about['num_tokens']} tokens with their ends"
    yield f"- File: {size / 1e6:.2f} MB; in memory {index.num_bytes / 1e6:.1f} MB"
    yield ""
    if not scores:
        yield "The corpus has no topics to keep back, so there are no figures on text the index does not hold."
        return
    texts = scores[0].num_texts
    yield f"Every eighth topic was kept back, {about['num_held_topics']} of them. Greedy decoding of {texts}"
    yield f"answers to these, {scores[0].num_tokens} tokens, as a chain of up to {GAMMA} (played on the stored answers,"
    yield "which gives the same steps as the model would):"
    yield ""
    yield "| searched | tokens a step | drafted a step | accepted / drafted | ms a proposal |"
    yield "|---|---|---|---|---|"
    for score in scores:
        rate = f"{score.num_accepted / score.num_drafted:.2f}" if score.num_drafted else "–"
        per_step = score.num_drafted / max(1, score.num_steps)
        yield f"| {score.sources} | {score.tokens_per_step:.2f} | {per_step:.2f} | {rate} | {score.draft_ms:.2f} |"
