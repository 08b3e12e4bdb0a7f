"""Which models to run, from words of the command line: a pair of the catalog, or models of the user's own."""

from __future__ import annotations

import argparse
from dataclasses import replace

from specviz.errors import ConfigError
from specviz.models.catalog import ModelPair, check_quant, custom_pair, default_pair_name, get_pair

__all__ = ["add_pair_flags", "chosen_pair"]


def add_pair_flags(parser: argparse.ArgumentParser) -> None:
    """--pair, or --target and --draft."""
    parser.add_argument(
        "--pair", metavar="NAME", default="", help=f"model pair of the catalog (default: {default_pair_name()})"
    )
    form = "a folder with config.json, tokenizer and safetensors, or owner/name or owner/name@revision of the Hub"
    parser.add_argument("--target", metavar="MODEL", default="", help=f"your own in place of --pair: {form}")
    parser.add_argument(
        "--draft",
        metavar="MODEL",
        default="",
        help="a draft model of your own, best one with the same tokenizer, for --target",
    )


def chosen_pair(options: argparse.Namespace, default: str = "", draft_quant: str = "auto") -> ModelPair:
    """The pair that these options name; `default`, or the catalog's, where they name none.

    Raises:
        ConfigError: options that do not fit together, an unknown name, or words that are no model.
    """
    if options.draft and not options.target:
        raise ConfigError("--draft is the draft of a --target. Name the target too, or choose a --pair.")
    if options.target and options.pair:
        raise ConfigError("Give either --pair or --target, not both.")
    if options.target:
        return custom_pair(options.target, options.draft or None, draft_quant=draft_quant, local=True)
    pair = get_pair(options.pair or default or default_pair_name())
    return pair if draft_quant == "auto" else replace(pair, draft_quant=check_quant(draft_quant))
