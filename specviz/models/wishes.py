"""What a model's own generation_config.json asks for and a run does not do, in sentences for the run's notes."""

from __future__ import annotations

from typing import Any

from specviz.config import SamplingParams

__all__ = ["unheeded_wishes"]

_NOT_DONE = {
    "suppress_tokens": "suppressed tokens",
    "begin_suppress_tokens": "tokens suppressed at the beginning",
    "bad_words_ids": "forbidden words",
    "sequence_bias": "a bias on some sequences",
    "forced_bos_token_id": "a forced first token",
    "forced_eos_token_id": "a forced last token",
    "forced_decoder_ids": "forced tokens",
    "stop_strings": "stop texts",
    "no_repeat_ngram_size": "no repeated n-grams",
    "encoder_repetition_penalty": "a penalty on what is not in the prompt",
    "encoder_no_repeat_ngram_size": "no n-grams of the prompt",
    "exponential_decay_length_penalty": "a length penalty",
    "min_length": "a least length",
    "min_new_tokens": "a least number of new tokens",
    "num_beams": "beam search",
    "penalty_alpha": "contrastive search",
    "guidance_scale": "guidance",
    "watermarking_config": "a watermark",
}
"""Settings that no run has here, by the name of transformers' GenerationConfig."""

_CUTS = {"min_p": "min-p", "typical_p": "typical-p", "epsilon_cutoff": "epsilon cutoff", "eta_cutoff": "eta cutoff"}
"""Cuts of the distribution that no run has here; they count where the model samples."""

_OFF: dict[str, Any] = {
    "num_beams": 1, "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0, "typical_p": 1.0, "top_p": 1.0,
    "repetition_penalty": 1.0,
}  # fmt: skip
"""Values that ask for nothing, where that is neither 0 nor none."""


def unheeded_wishes(generation: Any, sampling: SamplingParams) -> list[str]:
    """Sentences on what the model's own settings ask for and this run does otherwise; none where it does as asked.

    generation: GenerationConfig of the target, None where it has none. The end tokens in it are heeded.
    """

    def wish(name: str) -> Any:
        value = getattr(generation, name, None)
        return None if not value or value == _OFF.get(name) else value

    samples = bool(wish("do_sample"))
    missing = [words for name, words in _NOT_DONE.items() if wish(name) is not None]
    missing += [f"{words} {_short(wish(name))}" for name, words in _CUTS.items() if samples and wish(name) is not None]
    notes = []
    if missing:
        notes.append(f"The model's generation_config.json asks for {_listed(missing)}, which specviz does not do.")
    asked = [("temperature", "temperature"), ("top_k", "top-k"), ("top_p", "top-p")] if samples else []
    asked.append(("repetition_penalty", "repetition penalty"))
    others = []
    for name, words in asked:
        value = wish(name)
        if isinstance(value, int | float) and abs(value - getattr(sampling, name)) > 1e-9:
            others.append(f"{words} {_short(value)}")
    if samples and sampling.is_greedy and not others:
        others = ["sampling"]
    if others:
        mine = "This run is greedy" if sampling.is_greedy else "This run samples"
        notes.append(f"The model's generation_config.json asks for {_listed(others)}. {mine} as its own settings say.")
    return notes


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:20]


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
