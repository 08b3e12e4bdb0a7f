"""All methods by name. Feeds the menu, the command line, the README table and the contract test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specviz.config import RunConfig
from specviz.detokenize import token_names
from specviz.drafters.base import Drafter, Need
from specviz.drafters.budget import Budget, costs_of
from specviz.drafters.cascade import FALLBACK, FALLBACK_TREE, CascadeDrafter
from specviz.drafters.context_head import ContextHead
from specviz.drafters.early_exit import EXIT_LAYER, EarlyExitDrafter, early_exit_refusal, read_exit_layer
from specviz.drafters.feature import FeatureDrafter, read_parts
from specviz.drafters.lookahead import LOOKAHEAD_OPTIONS, JacobiDrafter, LookaheadDrafter
from specviz.drafters.medusa import MedusaDrafter, find_heads, medusa_refusal
from specviz.drafters.model import ModelDrafter
from specviz.drafters.ngram_table import MIN_COUNT, NgramTableDrafter, load_for
from specviz.drafters.options import Option
from specviz.drafters.plain import PlainDrafter
from specviz.drafters.prompt_lookup import PromptLookupDrafter
from specviz.drafters.suffix import SUFFIX_OPTIONS, SuffixDrafter, load_index, read_suffix_tree
from specviz.drafters.translation import translation_for
from specviz.drafters.tree import FEATURE_TREE, MAX_TREE_NODES, TREE, GrowingTree, Tree, parse_growing, parse_tree
from specviz.errors import ConfigError
from specviz.events import Exactness, ModelInfo
from specviz.models.catalog import ModelPair
from specviz.models.decoder import LeanDecoder, decoder_for
from specviz.models.loader import LoadedPair
from specviz.models.stored import draft_folder
from specviz.models.trunk import trunk_refusal

__all__ = ["METHODS", "Method", "get_method", "names"]

Built = tuple[Drafter, ModelInfo | None]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    title: for the menu. summary: one line, what it does. exactness: the greedy word at default settings; `word` tells
        that of a run. is_chain: whether a run's drafts are chains, where that is a setting.
    build: a drafter for one run, and which model drafts, if one does. It finds the method's own settings, checked and
        complete, in `config.options`.
    options: those settings. doubts: whether it has probabilities of its own, by which drafting can stop early.
    draws: whether sampled runs draft chains that are drawn, which can be verified as a block; None where they never do.
    check: reads settings that are texts of a form of their own; raises ConfigError.
    """

    name: str
    title: str
    summary: str
    exactness: Exactness
    build: Callable[[LoadedPair, RunConfig], Built]
    needs: frozenset[Need] = field(default_factory=frozenset)
    options: tuple[Option, ...] = ()
    is_chain: Callable[[RunConfig, LoadedPair], bool] | None = None
    doubts: bool = False
    draws: Callable[[RunConfig, LoadedPair], bool] | None = None
    check: Callable[[RunConfig], object] | None = None

    def word(self, config: RunConfig, loaded: LoadedPair) -> Exactness:
        """The greedy word under these settings: trees round otherwise, so they are never exact."""
        if self.exactness == "exact" and self.is_chain is not None and not self.is_chain(config, loaded):
            return "lossless"
        return self.exactness

    def drafts_chains(self, config: RunConfig, loaded: LoadedPair) -> bool:
        """Whether no draft under these settings has branches."""
        return Need.TREE not in self.needs and (self.is_chain is None or self.is_chain(config, loaded))

    def draws_chains(self, config: RunConfig, loaded: LoadedPair) -> bool:
        """Whether sampled drafts are, now and then at least, chains drawn from q."""
        return self.draws is not None and self.draws(config, loaded)

    def refusal(self, loaded: LoadedPair) -> str | None:
        """Why this method cannot run on this pair, in a sentence; None if it can."""
        trained = loaded.folder_of(self.name) is not None
        if Need.DRAFT in self.needs and not trained and loaded.pair.draft is None:
            return (
                f"The pair {loaded.pair.name} has no draft model of its own. `python -m specviz train student` makes "
                "one; quantized-copy drafts with a copy of the target in fewer bits, and prompt-lookup needs no model."
            )
        if Need.TRAINED in self.needs and not trained:
            return (
                f"The pair {loaded.pair.name} has no draft made for {self.name}. "
                "`python -m specviz train --help` says how to make one; prompt-lookup needs none."
            )
        if Need.STATES in self.needs:
            return trunk_refusal(loaded.target)
        if Need.LAYERS in self.needs:
            return early_exit_refusal(loaded.target)
        if Need.HIDDEN in self.needs:
            return medusa_refusal(loaded.target)
        return None

    def is_offered(self, pair: ModelPair) -> bool:
        """Whether the pair has what this method drafts with, as far as can be told before it is loaded."""
        if Need.TRAINED in self.needs and draft_folder(pair.name, self.name) is None:
            return False
        if Need.DRAFT in self.needs:
            return pair.draft is not None or draft_folder(pair.name, self.name) is not None
        return True


def _model_draft(name: str, *, copy: bool) -> Callable[[LoadedPair, RunConfig], Built]:
    def build(loaded: LoadedPair, config: RunConfig) -> Built:
        model, info = loaded.draft_model(config.draft_quant, copy=copy)
        notes = loaded.draft_extra.notes if loaded.draft_extra else ()
        translation = None
        if loaded.draft_tokenizer is not None:
            translation = translation_for(model, loaded.tokenizer, loaded.draft_tokenizer, loaded.vocab_size)
            notes += (
                f"The draft has a tokenizer of its own and knows {translation.share:.0%} of the target's tokens: only "
                "these are drafted.",
            )
        return ModelDrafter(
            name,
            model,
            vocab_size=loaded.vocab_size,
            max_new_tokens=config.max_new_tokens,
            stop_below=config.stop_below,
            notes=notes,
            translation=translation,
        ), info

    return build


def _feature(loaded: LoadedPair, config: RunConfig) -> Built:
    trained = loaded.trained_draft(FeatureDrafter.name, config.draft_quant)
    parts, taps = read_parts(trained)
    decoder = LeanDecoder.of(trained.model)
    layer = None if trained.about.get("parts") else loaded.target.get_output_embeddings().weight.detach()
    head = ContextHead(decoder, trained.model.output_ids, layer, vocab_size=loaded.vocab_size)

    def make(shape: Tree | GrowingTree, budget: Budget | None) -> FeatureDrafter:
        return FeatureDrafter(
            decoder,
            parts,
            head,
            taps,
            shape,
            vocab_size=loaded.vocab_size,
            max_new_tokens=config.max_new_tokens,
            stop_below=config.stop_below,
            budget=budget,
            notes=trained.notes,
        )

    shape, budget = _shape(config), None
    if isinstance(shape, GrowingTree) and shape.num_nodes is None:
        budget = Budget(costs_of(loaded, make(GrowingTree(MAX_TREE_NODES), None), config.draft_quant))
    return make(shape, budget), trained.info


def _lookahead(loaded: LoadedPair, config: RunConfig) -> Built:
    name_of = token_names(loaded.tokenizer)
    return LookaheadDrafter(**config.options, max_new_tokens=config.max_new_tokens, name_of=name_of), None


def _ngram_table(loaded: LoadedPair, config: RunConfig) -> Built:
    table, info, notes = load_for(loaded)
    return NgramTableDrafter(table, **config.options, stop_below=config.stop_below, notes=notes), info


def _suffix(loaded: LoadedPair, config: RunConfig) -> Built:
    """The pair's index where it has one; without one the run alone is searched."""
    settings = {option.name: option.default for option in SUFFIX_OPTIONS} | config.options
    shape = read_suffix_tree(str(settings.pop(TREE.name)))
    found = load_index(loaded) if settings["sources"] != "run" else None
    if found is None and settings["sources"] == "answers":
        raise ConfigError(
            f"The pair {loaded.pair.name} has no suffix index. Make one with `python -m specviz train suffix --pair "
            f"{loaded.pair.name} --corpus FILE`, or choose --sources run."
        )
    index, info, notes = found or (None, None, ())
    if found is None and settings["sources"] == "both":
        notes = (f"The pair {loaded.pair.name} has no suffix index, so this run alone is searched.",)
    name_of = token_names(loaded.tokenizer)
    return SuffixDrafter(
        index, shape=shape, **settings, stop_below=config.stop_below, name_of=name_of, notes=notes
    ), info


_CASCADE_OPTIONS = (FALLBACK, FALLBACK_TREE)

_TRAINED = ("feature", "draft-model")
"""What a cascade falls back on where the pair has it, the faster one first."""


def _fallback(loaded: LoadedPair, config: RunConfig) -> str:
    """The method behind lookup and table, "none" for none."""
    wanted = str(config.options.get(FALLBACK.name, FALLBACK.default))
    if wanted != "auto":
        return wanted
    usable = (n for n in _TRAINED if loaded.folder_of(n) is not None and get_method(n).refusal(loaded) is None)
    return next(usable, "none")


def _cascade(loaded: LoadedPair, config: RunConfig) -> Built:
    """Suffix decoding, the pair's table where there is nothing better, and a model; the model is what gets reported."""
    fallback = _fallback(loaded, config)
    inner: list[Drafter] = []
    if fallback == "none":
        suffix, info = _suffix(loaded, replace(config, options={}))
        inner.append(suffix)
        if draft_folder(loaded.pair.name, NgramTableDrafter.name):
            table, info = _ngram_table(loaded, replace(config, options={}))
            inner.append(table)
        return CascadeDrafter(inner, notes=_notes_of(inner)), info
    method = get_method(fallback)
    refusal = method.refusal(loaded)
    if refusal:
        raise ConfigError(f"fallback {fallback}: {refusal}")
    own = _as_feature(config) if fallback == "feature" else replace(config, options={})
    model, info = method.build(loaded, own)
    grows = getattr(model, "joins", False)
    suffix, _ = _suffix(loaded, replace(config, options={TREE.name: "growing" if grows else "chain"}))
    inner = [suffix, model]
    budget = getattr(model, "budget", None) or Budget(
        costs_of(loaded, method.build(loaded, own)[0], config.draft_quant)
    )
    return CascadeDrafter(inner, budget=budget, notes=_notes_of(inner)), info


def _notes_of(drafters: Sequence[Drafter]) -> tuple[str, ...]:
    return tuple(note for drafter in drafters for note in getattr(drafter, "notes", ()))


def _cascades_in_chains(config: RunConfig, loaded: LoadedPair) -> bool:
    return _fallback(loaded, config) != "feature" or _is_chain(_as_feature(config), loaded)


def _cascade_draws(config: RunConfig, loaded: LoadedPair) -> bool:
    fallback = _fallback(loaded, config)
    return fallback != "none" and get_method(fallback).draws_chains(_as_feature(config), loaded)


def _as_feature(config: RunConfig) -> RunConfig:
    """The settings with which a cascade's feature head drafts."""
    tree = str(config.options.get(FALLBACK_TREE.name, FALLBACK_TREE.default))
    if tree == "auto":  # passes of a fixed width hold chains only
        tree = str(TREE.default) if config.exact else "growing"
    return replace(config, options={TREE.name: tree})


def _early_exit(loaded: LoadedPair, config: RunConfig) -> Built:
    num_layers = decoder_for(loaded.target).num_layers
    exit_layer = read_exit_layer(config.options.get(EXIT_LAYER.name, EXIT_LAYER.default), num_layers)
    vocab_size, eos_ids = loaded.vocab_size, loaded.eos_ids
    return EarlyExitDrafter(
        exit_layer, num_layers, vocab_size=vocab_size, eos_ids=eos_ids, stop_below=config.stop_below
    ), None


def _always(*_: object) -> bool:
    return True


def _tree(config: RunConfig) -> Tree:
    return parse_tree(_tree_words(config))


def _shape(config: RunConfig) -> Tree | GrowingTree:
    return parse_growing(_tree_words(config)) or _tree(config)


def _is_chain(config: RunConfig, _: LoadedPair) -> bool:
    return parse_growing(_tree_words(config)) is None and _tree(config).is_chain


def _tree_words(config: RunConfig) -> str:
    return str(config.options.get(TREE.name, TREE.default))


def _medusa(loaded: LoadedPair, config: RunConfig) -> Built:
    heads, notes = find_heads(loaded)
    decoder, tree = decoder_for(loaded.target), _tree(config)
    return MedusaDrafter(decoder, heads, tree, vocab_size=loaded.vocab_size, notes=notes), None


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "plain",
            "Plain decoding",
            "No draft: one token a pass. The baseline.",
            "exact",
            lambda *_: (PlainDrafter(), None),
        ),
        Method(
            "prompt-lookup",
            "Prompt lookup",
            "Copies what followed the same words earlier in the text.",
            "exact",
            lambda *_: (PromptLookupDrafter(), None),
        ),
        Method(
            "ngram-table",
            "N-gram table",
            "Continues as a corpus counted beforehand most often did after the same tokens.",
            "exact",
            _ngram_table,
            NgramTableDrafter.needs,
            (MIN_COUNT,),
            doubts=True,
        ),
        Method(
            "suffix",
            "Suffix decoding",
            "Continues as this run, or answers of the target read beforehand, most often did, as far as is likely.",
            "exact",
            _suffix,
            SuffixDrafter.needs,
            SUFFIX_OPTIONS,
            lambda config, _: read_suffix_tree(_tree_words(config)) is None,
            doubts=True,
            check=lambda config: read_suffix_tree(_tree_words(config)),
        ),
        Method(
            "cascade",
            "Cascade",
            "Suffix decoding and a draft trained for the pair, in one tree that grows as far as it pays.",
            "exact",
            _cascade,
            CascadeDrafter.needs,
            _CASCADE_OPTIONS,
            _cascades_in_chains,
            draws=_cascade_draws,
            check=lambda config: _shape(_as_feature(config)),
        ),
        Method(
            "lookahead",
            "Lookahead",
            "The target guesses ahead in a window beside each check; n-grams it settles into are drafted.",
            "lossless",
            _lookahead,
            frozenset({Need.TREE}),
            LOOKAHEAD_OPTIONS,
        ),
        Method(
            "jacobi",
            "Jacobi",
            "The target's own corrections of the last guesses are the next guesses.",
            "lossless",
            lambda *_: (JacobiDrafter(), None),
        ),
        Method(
            "medusa",
            "Medusa heads",
            "Extra heads on the target's last state guess several tokens at once; untrained where a pair has none.",
            "exact",
            _medusa,
            MedusaDrafter.needs,
            (TREE,),
            _is_chain,
            check=_tree,
        ),
        Method(
            "feature",
            "Feature head",
            "One trained layer reads the target's hidden states and guesses on from them, as a chain or as a tree.",
            "exact",
            _feature,
            FeatureDrafter.needs,
            (FEATURE_TREE,),
            _is_chain,
            doubts=True,
            draws=_is_chain,
            check=_shape,
        ),
        Method(
            "early-exit",
            "Early exit",
            "The target's own first layers draft, and checking goes on where they stopped.",
            "exact",
            _early_exit,
            EarlyExitDrafter.needs,
            (EXIT_LAYER,),
            doubts=True,
            draws=_always,
        ),
        Method(
            "quantized-copy",
            "Quantized copy of the target",
            "The target's own weights, held in fewer bits, draft.",
            "exact",
            _model_draft("quantized-copy", copy=True),
            frozenset({Need.SAME_TOKENIZER}),
            doubts=True,
            draws=_always,
        ),
        Method(
            "draft-model",
            "Draft model",
            "The pair's own smaller model drafts.",
            "exact",
            _model_draft("draft-model", copy=False),
            frozenset({Need.SAME_TOKENIZER, Need.DRAFT}),
            doubts=True,
            draws=_always,
        ),
    )
}


def names() -> list[str]:
    """All method names, the baseline first."""
    return list(METHODS)


def get_method(name: str) -> Method:
    """Raises ConfigError, listing the names, where there is none of that name."""
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"Unknown method {name[:40]!r}. Known are {', '.join(METHODS)}.")
    return method
