"""Models in memory: number format, quantization, device. Files are fetched by `fetch`, never from here."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import ConfigError, ModelLoadError
from specviz.events import ModelInfo
from specviz.models.catalog import ModelPair, WeightSource, check_quant, get_pair
from specviz.models.convert import Progress, quiet_libraries
from specviz.models.fetch import cache_dir, fetch_pair, part_folder, read_provenance, silent, with_sizes
from specviz.models.int8 import Int8Linear, int8_pays, quantize_int8
from specviz.models.kind import kind_refusal, require_causal
from specviz.models.machine import Machine, fits, probe, set_threads, trim_memory
from specviz.models.stored import draft_folder
from specviz.models.trunk import load_trunk, trunk_logits
from specviz.models.vocabulary import is_same_vocabulary

if TYPE_CHECKING:
    import torch

__all__ = ["LoadedPair", "Progress", "cache_dir", "fetch_pair", "load_draft", "load_pair"]

DTYPES = ("auto", "bfloat16", "float32")
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>", "<turn|>")
"""Control tokens that close a chat turn: a model that writes one has finished, whatever its configuration says."""

DEFAULT_CONTEXT = 2048
"""Where a model's configuration names no longest context."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedDraft:
    """A draft made by `specviz train` for one pair.

    model: a trunk, see `specviz.models.trunk`. extra: tensors that stand beside it. about: its manifest.
    notes: what a reader of its runs has to know.
    """

    model: Any
    info: ModelInfo
    extra: dict[str, torch.Tensor]
    about: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class LoadedPair:
    """A pair in memory.

    target, draft: transformers causal LMs in eval mode without gradients, on `device`; draft None before it is needed.
    draft_key: which draft that is, and how it is held. draft_folders: by method, where to take a trained draft from
        instead of the usual places. trained: by method, its trained draft. These are small and stay, so that visitors
        who take turns with them do not load them again each time.
    draft_tokenizer: of a draft that reads other tokens than the target; None where they are the same.
    dtype: of all computation; the draft's too. max_context: most tokens the target can attend to.
    eos_ids: every id that ends the answer. vocab_size: ids at or above are padding of the output layer, never emitted.
    notes: what was done differently from what was asked, in sentences for the page.
    """

    pair: ModelPair
    tokenizer: Any
    target: Any
    target_info: ModelInfo
    dtype: torch.dtype
    device: torch.device
    max_context: int
    eos_ids: frozenset[int]
    vocab_size: int
    draft: Any = None
    draft_info: ModelInfo | None = None
    draft_key: tuple[str, str] = ("", "")
    draft_extra: TrainedDraft | None = None
    draft_tokenizer: Any = None
    draft_folders: dict[str, Path] = field(default_factory=dict)
    trained: dict[str, TrainedDraft] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def num_layers(self) -> int:
        return int(getattr(self.target.config, "num_hidden_layers", 0) or 0)

    def draft_model(self, quant: str = "auto", *, copy: bool = False) -> tuple[Any, ModelInfo]:
        """`load_draft`, with "auto" for the pair's default; `copy` asks for the target's weights even where the pair
        has a draft of its own.
        """
        return load_draft(self, None if quant == "auto" else quant, copy=copy)

    def trained_draft(self, method: str, quant: str = "auto") -> TrainedDraft:
        """The draft that was trained for this pair and method, kept until it is asked for in another number format.

        Raises:
            ModelLoadError: there is none, or its files are damaged or made for a target of another size.
        """
        return load_trained(self, method, None if quant == "auto" else quant)

    def folder_of(self, method: str) -> Path | None:
        """Where the draft trained for this pair and method lies; None where there is none."""
        return self.draft_folders.get(method) or draft_folder(self.pair.name, method)

    def refuse_other_tokens(self, what: str) -> None:
        """Raise ConfigError if the draft in use reads other tokens than the target, which `what` cannot work with."""
        if self.draft_tokenizer is not None:
            raise ConfigError(f"{what} needs a draft that reads the target's tokens, and this pair's has others.")

    def drop_draft(self) -> None:
        """Release the draft that was used last, unless it is a trained one."""
        if self.draft is not None:
            self._forget_draft()
            _give_back(self.device)

    def drop_drafts(self) -> None:
        """Release all of them."""
        self.trained.clear()
        self._forget_draft()
        _give_back(self.device)

    def _forget_draft(self) -> None:
        self.draft = self.draft_info = self.draft_extra = self.draft_tokenizer = None
        self.draft_key = ("", "")

    def close(self) -> None:
        """Release both models. The pair cannot be used afterwards."""
        self.target = None
        self.drop_drafts()


def load_pair(
    name: str | ModelPair,
    *,
    dtype: str = "auto",
    draft_quant: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> LoadedPair:
    """Fetch what is missing, then load the target and its tokenizer; the draft too if `draft_quant` is given.

    Args:
        name: a name of the catalog, or a pair.
        dtype: "bfloat16", "float32", or "auto" for what is fast on this machine.
        draft_quant: one of DRAFT_QUANTS to load the draft at once; None leaves it to `load_draft`.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        progress: told about every stage.
    Raises:
        ConfigError: unknown name, dtype, quantization or device.
        ModelLoadError: the weights cannot be fetched, do not fit, or are of an unknown kind.
    """
    import torch
    from transformers import AutoTokenizer

    pair = get_pair(name) if isinstance(name, str) else name
    report = progress or silent
    if draft_quant is not None:
        check_quant(draft_quant)
    machine = probe()
    place = _device(device, machine.default_device())
    number_format, notes = _dtype(dtype, machine.default_dtype(), place.type)
    _require_memory(pair, machine, number_format)
    fetch_pair(pair, progress=report)
    _require_memory(with_sizes(pair), machine, number_format)  # one of the user's own tells its size only now
    set_threads()

    report(f"Loading {pair.target.name}", None)
    folder = part_folder(pair, "target")
    _refuse_other_kinds(pair.target.name, folder)
    tokenizer = _guarded(pair.target.name, lambda: AutoTokenizer.from_pretrained(folder, **_SAFE))
    run_dtype = getattr(torch, number_format)
    target = _load_model(pair.target, folder, run_dtype, place)
    loaded = LoadedPair(
        pair=pair,
        tokenizer=tokenizer,
        target=target,
        target_info=_info(pair.target, folder, target, number_format, ""),
        dtype=run_dtype,
        device=place,
        max_context=_max_context(target.config),
        eos_ids=_eos_ids(target, tokenizer),
        vocab_size=_vocab_size(target, tokenizer),
        notes=tuple(notes),
    )
    if place.type == "cpu":  # a GPU may be lent for the runs only: there the self-test asks
        _guarded(pair.target.name, lambda: require_causal(pair.target.name, target, loaded.vocab_size))
    if draft_quant is not None:
        load_draft(loaded, draft_quant, progress=report)
    return loaded


def _refuse_other_kinds(name: str, folder: Path) -> None:
    """Raises ModelLoadError for what is no causal language model, before any weight is read."""
    from transformers import AutoConfig

    refusal = kind_refusal(name, _guarded(name, lambda: AutoConfig.from_pretrained(folder, **_SAFE)))
    if refusal:
        raise ModelLoadError(refusal)


def _require_memory(pair: ModelPair, machine: Machine, number_format: str) -> None:
    too_large = fits(pair, machine, number_format)
    if too_large:
        raise ModelLoadError(too_large)


def load_draft(
    loaded: LoadedPair, quant: str | None = None, *, copy: bool = False, progress: Progress | None = None
) -> tuple[Any, ModelInfo]:
    """The draft of a loaded pair, held as `quant`; kept in `loaded`, so asking again costs nothing.

    A pair without a draft of its own gets a copy of its target, made from the same stored weights. A copy in the
    target's own number format is the target itself: sharing the weights changes no result and saves their memory.

    Args:
        quant: one of DRAFT_QUANTS; None for the pair's default.
        copy: the target's weights, even where the pair has a draft of its own.
    Returns:
        (model, info), computing in the pair's dtype on the pair's device.
    Raises:
        ConfigError: unknown quantization.
        ModelLoadError: bitsandbytes or accelerate is missing, or the weights cannot be loaded.
        TokenizerMismatchError: the draft reads other text from the same ids.
    """
    import torch
    from transformers import AutoTokenizer

    if not copy and loaded.folder_of("draft-model"):
        trained = load_trained(loaded, "draft-model", quant, progress=progress)
        return trained.model, trained.info
    with loaded.lock:
        if loaded.target is None:
            raise ModelLoadError("This pair has been closed. Load it again.")
        quant = held_as(quant or loaded.pair.draft_quant, loaded)
        own = None if copy else loaded.pair.draft
        key = ("own" if own else "copy", quant)
        if loaded.draft is not None and loaded.draft_info and loaded.draft_key == key:
            return loaded.draft, loaded.draft_info
        source = own or loaded.pair.target
        folder = part_folder(loaded.pair, "draft" if own else "target")
        (progress or silent)(f"Loading the draft, {source.name} as {quant}", None)
        other: Any = None
        if own:
            _refuse_other_kinds(source.name, folder)
            tokenizer = _guarded(source.name, lambda: AutoTokenizer.from_pretrained(folder, **_SAFE))
            other = None if is_same_vocabulary(loaded.tokenizer, tokenizer) else tokenizer
        loaded.drop_draft()
        if quant == "nf4":
            draft = _load_model(source, folder, loaded.dtype, loaded.device, _nf4(loaded.dtype))
            _warm_up(draft, source.name)
        elif quant == "int8":
            draft = _load_int8(source, folder, loaded.dtype, loaded.device)
        elif own is None and getattr(torch, quant) == loaded.dtype:
            draft = loaded.target
        else:
            draft = _load_model(source, folder, getattr(torch, quant), loaded.device)
        number_format = str(loaded.dtype).removeprefix("torch.") if quant in ("nf4", "int8") else quant
        loaded.draft, loaded.draft_info = draft, _info(source, folder, draft, number_format, quant)
        loaded.draft_key, loaded.draft_tokenizer = key, other
        return loaded.draft, loaded.draft_info


def load_trained(
    loaded: LoadedPair, method: str, quant: str | None = None, *, progress: Progress | None = None
) -> TrainedDraft:
    """The draft trained for a pair and method, see `LoadedPair.trained_draft`; kept in `loaded` like any draft.

    Embedding and output layer are the target's; the layers, and the rows of the output layer, are held as `quant`. A
    draft model in another full format than the target's gets an embedding of its own.
    """
    import torch

    with loaded.lock:
        if loaded.target is None:
            raise ModelLoadError("This pair has been closed. Load it again.")
        quant = held_as(quant or loaded.pair.draft_quant, loaded, small=True)
        if method in loaded.trained and loaded.trained[method].info.quantization == quant:
            if loaded.draft is not None and loaded.draft_extra is None:
                loaded.drop_draft()  # a whole model: this one needs its memory
            return _use(loaded, method)
        folder = loaded.folder_of(method)
        if folder is None:
            raise ModelLoadError(
                f"The pair {loaded.pair.name} has no draft trained for {method}. "
                "`python -m specviz train --help` says how to make one."
            )
        (progress or silent)(f"Loading the trained draft as {quant}", None)
        loaded.trained.pop(method, None)
        loaded.drop_draft()
        model, extra, about = load_trunk(folder, loaded.target, loaded.vocab_size)
        name = f"{method} of {loaded.pair.target.name}, {about['num_layers']} of {loaded.num_layers} layers"
        shared = loaded.target.get_input_embeddings().weight
        num_params, shared_bytes = _num_params(model), 0
        if model.get_input_embeddings().weight is shared:
            num_params, shared_bytes = num_params - shared.numel(), shared.nbytes
        other = quant in ("bfloat16", "float32") and getattr(torch, quant) != loaded.dtype
        if other and method == "draft-model":  # it reads no states of the target, so it may have a format of its own
            model, shared_bytes = deepcopy(model).to(getattr(torch, quant)), 0
        else:
            _hold_trunk(model, quant, loaded, name)
        info = ModelInfo(
            name=name,
            source=str(about.get("source") or f"specviz train, for {loaded.pair.name}"),
            sha256=str(about.get("sha256", "")),
            licence="" if "source" in about else loaded.pair.target.licence,
            dtype=quant if other else str(loaded.dtype).removeprefix("torch."),
            quantization=quant,
            num_params=num_params,
            num_bytes=_num_bytes(model) - shared_bytes,
        )
        notes: tuple[str, ...] = ()
        ours, theirs = loaded.target_info.sha256, str(about.get("target_sha256", ""))
        if ours and theirs and ours != theirs:
            notes = (
                f"The draft was trained on other weights ({theirs[:8]}…) than this target's ({ours[:8]}…). "
                "The text stays right; fewer drafts are accepted.",
            )
        loaded.trained[method] = TrainedDraft(model, info, extra, about, notes)
        return _use(loaded, method)


def _use(loaded: LoadedPair, method: str) -> TrainedDraft:
    trained = loaded.trained[method]
    loaded.draft, loaded.draft_info, loaded.draft_extra = trained.model, trained.info, trained
    loaded.draft_key, loaded.draft_tokenizer = (method, trained.info.quantization), None
    return trained


def held_as(quant: str, loaded: LoadedPair, *, small: bool = False) -> str:
    """One of DRAFT_QUANTS; for "auto" the one that is fastest: int8 on a processor, nf4 on a GPU. A pair in another
    number format than those two compute in is not quantized, nor is a `small` draft of a few layers where this
    processor multiplies the target's format faster."""
    import torch

    if quant != "auto":
        return check_quant(quant)
    if loaded.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return str(loaded.dtype).removeprefix("torch.")
    if loaded.device.type != "cpu":
        return "nf4"
    size = int(loaded.target.get_input_embeddings().weight.shape[1])
    return "int8" if not small or int8_pays(size, loaded.dtype) else str(loaded.dtype).removeprefix("torch.")


def _hold_trunk(model: Any, quant: str, loaded: LoadedPair, name: str) -> None:
    """Quantize a trunk in place. What it shares with the target stays as it is."""
    import torch

    if quant == "int8" and loaded.device.type == "cpu":
        quantize_int8(model)
    elif quant in ("nf4", "int8"):
        _require_bitsandbytes(quant)
        _quantize_linears(model.model.layers, quant, loaded)
        _warm_up(model, name, trunk_logits)
    elif getattr(torch, quant) != loaded.dtype:
        raise ModelLoadError(
            f"A trained draft shares the target's embedding, so it is held in {loaded.dtype} as that is, or as nf4 or "
            f"int8; {quant} was asked for."
        )


def _quantize_linears(layers: Any, quant: str, loaded: LoadedPair) -> None:
    """Replace every linear layer by bitsandbytes' own of 4 or 8 bits."""
    import bitsandbytes as bnb
    import torch

    for parent in list(layers.modules()):
        for child_name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear:
                continue
            sizes = (child.in_features, child.out_features)
            with_bias = child.bias is not None
            if quant == "nf4":
                new = bnb.nn.Linear4bit(*sizes, bias=with_bias, compute_dtype=loaded.dtype, quant_type="nf4")
                new.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
            else:
                new = bnb.nn.Linear8bitLt(*sizes, bias=with_bias, has_fp16_weights=False)
                new.weight = bnb.nn.Int8Params(child.weight.data, requires_grad=False, has_fp16_weights=False)
            new.bias = child.bias
            setattr(parent, child_name, new.to(loaded.device))


_SAFE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""For every from_pretrained: files on this disk only, and never a model's own Python code (case 90)."""


def _load_model(
    source: WeightSource, folder: Path, dtype: torch.dtype, device: torch.device, quantization: Any = None
) -> Any:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, **_SAFE}
    if quantization is not None:
        options |= {"quantization_config": quantization, "device_map": {"": str(device)}}
    with quiet_libraries():
        model = _guarded(source.name, lambda: AutoModelForCausalLM.from_pretrained(folder, **options))
    if quantization is None:
        model = model.to(device)
    if device.type == "cpu":
        _own_memory(model)
    return model.eval().requires_grad_(False)


def _load_int8(source: WeightSource, folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """8 bits: bitsandbytes on a GPU, torch's weight-only product on a CPU, where the former is three times slower."""
    if device.type == "cuda":
        from transformers import BitsAndBytesConfig

        _require_bitsandbytes("int8")
        return _load_model(source, folder, dtype, device, BitsAndBytesConfig(load_in_8bit=True))
    return quantize_int8(_load_model(source, folder, dtype, device))


def _own_memory(model: Any) -> None:
    """Copy weights that still lie in the mapped file: there they are not aligned to cache lines (their offset depends
    on the length of the file's header), and a file that is replaced in place would change a running model."""
    for param in model.parameters():
        if param.data_ptr() % 64 and not hasattr(param, "quant_state"):
            param.data = param.data.clone()  # shared weights stay shared: they are one parameter


def _guarded(name: str, load: Any) -> Any:
    """Run a library's load; what it raises becomes one sentence with the model's name."""
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, RuntimeError, LookupError, ImportError, SafetensorError) as error:
        text = " ".join(str(error).split())
        if "trust_remote_code" in text or "custom code" in text:
            raise ModelLoadError(
                f"{name} brings program code of its own, which specviz never runs. "
                "Choose a model of a kind that transformers knows."
            ) from error
        if isinstance(error, RuntimeError) and "out of memory" in text.lower():
            raise ModelLoadError(f"The GPU ran out of memory while loading {name}. Choose a smaller pair.") from error
        raise ModelLoadError(f"{name} could not be loaded: {text[:300] or type(error).__name__}") from error


def _nf4(dtype: torch.dtype) -> Any:
    """4-bit NormalFloat, computing in `dtype` (Dettmers et al. 2023). Raises ModelLoadError where a package lacks."""
    missing = [name for name in ("bitsandbytes", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelLoadError(
            f"A draft in nf4 needs {' and '.join(missing)}: pip install {' '.join(missing)}. "
            "Or choose an unquantized draft with --draft-quant bfloat16."
        )
    _import_bitsandbytes()
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=False,  # saves 3 % of memory for one more unpacking in every layer
    )


def _import_bitsandbytes() -> None:
    """Import it without the package `kernels`, through which it would fetch compiled code from the Hub and run it."""
    if "bitsandbytes" in sys.modules:
        return
    missing = object()
    hidden = sys.modules.get("kernels", missing)
    sys.modules["kernels"] = None  # type: ignore[assignment]  # makes `import kernels` fail; bitsandbytes then does without
    try:
        with quiet_libraries():
            importlib.import_module("bitsandbytes")
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelLoadError(
            "bitsandbytes is installed but does not start on this machine. "
            "Choose an unquantized draft with --draft-quant bfloat16."
        ) from error
    finally:
        if hidden is missing:
            del sys.modules["kernels"]
        else:
            sys.modules["kernels"] = hidden  # type: ignore[assignment]


def _warm_up(model: Any, name: str, one_pass: Callable[[Any], Any] | None = None) -> None:
    """One pass of one token: bitsandbytes lays its weights out anew in the first pass, and a kernel that does not
    work here shows before a run does (case 100)."""
    import torch

    with torch.inference_mode(), quiet_libraries():
        ids = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        logits = _guarded(name, lambda: one_pass(model) if one_pass else model(input_ids=ids, use_cache=False).logits)
    if not bool(torch.isfinite(logits).all()):
        raise ModelLoadError(
            f"{name} in 4 bits computes values that are not numbers on this machine. "
            "Choose an unquantized draft with --draft-quant bfloat16."
        )


def _require_bitsandbytes(quant: str) -> None:
    missing = [name for name in ("bitsandbytes", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelLoadError(
            f"A draft in {quant} needs {' and '.join(missing)}: pip install {' '.join(missing)}. "
            "Or choose an unquantized draft with --draft-quant bfloat16."
        )


def _device(wanted: str, default: str) -> torch.device:
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda; got {str(wanted)[:40]!r}.")
    name = default if wanted == "auto" else wanted
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("There is no GPU that torch can use on this machine. Choose --device cpu.")
    return torch.device("cuda:0" if name == "cuda" else "cpu")


def _dtype(wanted: str, default: str, device: str) -> tuple[str, list[str]]:
    """(number format, notes). Half precision on a CPU is slow or lacks kernels, so it becomes `default` (case 99)."""
    if wanted == "float16":
        if device == "cuda":
            return "float16", []
        return default, [f"float16 is slow or missing on a CPU, so the models run in {default}."]
    if wanted not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {str(wanted)[:40]!r}.")
    return (default if wanted == "auto" else wanted), []


def _info(source: WeightSource, folder: Path, model: Any, dtype: str, quantization: str) -> ModelInfo:
    found = read_provenance(folder)
    return ModelInfo(
        name=source.name,
        source=found.source if found else "local folder" if source.folder else "",
        revision=found.revision if found else source.revision,
        sha256=found.sha256 if found else "",
        licence=source.licence,
        dtype=dtype,
        quantization=quantization,
        num_params=_num_params(model),
        num_bytes=_num_bytes(model),
    )


def _num_bytes(model: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def _num_params(model: Any) -> int:
    """Weights counted once each; a packed 4-bit tensor counts as what it was made from."""
    count = 0
    for param in model.parameters():
        state = getattr(param, "quant_state", None)
        count += state.shape.numel() if state is not None else param.numel()
    return count + sum(module.weight.numel() for module in model.modules() if isinstance(module, Int8Linear))


def _max_context(config: Any) -> int:
    lengths = [
        getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_sequence_length")
    ]
    return next((int(length) for length in lengths if length), DEFAULT_CONTEXT)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: by generation config (maybe several), config, tokenizer, or as end of a turn."""
    found: set[int] = set()
    for value in (
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        found |= set(value) if isinstance(value, list | tuple) else set() if value is None else {value}
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(found | {special[text] for text in END_OF_TURN if text in special})


def _vocab_size(model: Any, tokenizer: Any) -> int:
    """Ids that stand for text. Output layers are often padded beyond them (case 110)."""
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    return min(known, int(model.get_output_embeddings().weight.shape[0]))


def _give_back(device: torch.device) -> None:
    """Hand the memory of what was just released back to the system."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim_memory()
