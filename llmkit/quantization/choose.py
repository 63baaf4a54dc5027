"""The type of one tensor after another: what the user fixed, the mixture rules, what its shape allows.

Owns the order of these decisions and the counters that the rules run on: a rule for the third attn_v means the third
that came by. Knows nothing of files. Source: llama.cpp b11434, llama_tensor_get_type and tensor_type_fallback.
"""

from collections import Counter
from dataclasses import dataclass

from ..errors import QuantizeError
from ..files.ggml_types import GGML_TYPES, TYPE_IDS
from ..files.gguf_cursor import shown
from ..files.gguf_tensors import TensorInfo
from ..quants.quantize.registry import NEEDS_IMPORTANCE
from . import mixture
from .file_types import FLOATS, rule_name
from .mixture import Case, Facts, decide
from .options import QuantizeOptions, ggml_name
from .tensor_names import OUTPUT, TOKEN_EMBD, TOKEN_EMBDS, layer, may_be_quantized, role

# Where rows are no multiple of the block: a type with smaller blocks, and F16 where that does not fit either.
FALLBACKS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

NEED_IMATRIX = ("IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S")


@dataclass(frozen=True)
class Choice:
    """The type of a tensor. `instead_of`: the type that its rows do not fit; `by_hand`: a --tensor-type decided
    against the file type's default."""

    type: str
    instead_of: str = ""
    by_hand: bool = False


class Chooser:
    """Asked once for each tensor, in the order in which they are written."""

    def __init__(self, options: QuantizeOptions, facts: Facts, names: list[str]) -> None:
        self.options = options
        self.facts = facts
        self.file_type = rule_name(options.file_type)
        self.is_tied = "output.weight" not in names
        self.seen: Counter[str] = Counter()

    def choose(self, info: TensorInfo, name: str) -> Choice | None:
        """The choice for a tensor that will be called `name`; None where it stays as it is."""
        options, default = self.options, self.options.file_type.default
        renamed = TensorInfo(name, info.shape, info.type, info.offset, info.n_bytes)
        left = options.leave_output and name == "output.weight"
        if options.file_type.is_copy or left or not may_be_quantized(renamed, self.facts.arch):
            return None
        part = role(name)
        by_hand = next((rule.type for rule in options.tensor_rules if rule.pattern.search(name)), None)
        named_table = name == TOKEN_EMBDS[1] and by_hand is not None
        if options.embedding_type and part == TOKEN_EMBD and not named_table:
            return Choice(_fitting(name, info.shape[0], options.embedding_type))
        if options.output_type and part == OUTPUT:
            return Choice(_fitting(name, info.shape[0], options.output_type))
        if default in FLOATS:
            return Choice(default)
        if by_hand is not None:
            wanted = by_hand
        else:
            wanted = default if options.pure else self._mixed(renamed, part)
        fitting = fit(name, info.shape[0], wanted)
        return Choice(fitting, wanted if fitting != wanted else "", by_hand is not None and by_hand != default)

    def _mixed(self, info: TensorInfo, part: str) -> str:
        """What the mixture says."""
        default = self.options.file_type.default
        if self.facts.arch == "glm5-next" and any(w in info.name for w in ("attn_q_a", "attn_q_b", "nextn.eh_proj")):
            return "Q8_0"
        if part == OUTPUT or (part == TOKEN_EMBD and self.is_tied):
            if self.options.output_type:
                return self.options.output_type
            if info.shape[0] % GGML_TYPES[TYPE_IDS[default]].block_size:
                return "Q8_0"
            return decide(mixture.OUTPUT_RULES, self.file_type, self._case(info, part, default))
        if self.file_type == "MXFP4_MOE":
            return decide(mixture.MXFP4_RULES, self.file_type, self._case(info, part, default))
        if part == TOKEN_EMBD:
            return decide(mixture.TOKEN_EMBD_RULES, self.file_type, self._case(info, part, default))
        return self._by_role(info, part, default)

    def _by_role(self, info: TensorInfo, part: str, default: str) -> str:
        lowest = self.file_type in mixture.LOWEST
        case = self._case(info, part, default, by_name=not lowest and part.startswith("ffn"))
        self.seen[part] += 1
        table = mixture.LOWEST_RULES if lowest else mixture.RULES
        type = decide(table.get(part, ()), self.file_type, case)
        for rule in () if lowest else mixture.AFTER_RULES.get(part, ()):
            type = decide((rule,), self.file_type, Case(case.facts, case.i, case.n, case.is_3d, type))
        return type

    def _case(self, info: TensorInfo, part: str, type: str, by_name: bool = False) -> Case:
        """Layers are counted as they come by; with experts, which may lie in any order, the name tells."""
        i, n = self.seen[part], self.facts.n_attn_v if part == "attn_v" else self.facts.n_layer
        if by_name and self.facts.n_expert > 1:
            named = layer(info.name)
            if named is None or named >= n:
                raise QuantizeError(
                    f"tensor {shown(info.name)}: its name gives no layer from 0 to {n - 1}",
                    "The mixtures of models with experts need it; --pure does without them.",
                )
            i = named
        of_expert = self.facts.arch != "bailingmoe3" or part.startswith("ffn")
        return Case(self.facts, i, n, len(info.shape) > 2 and info.shape[2] > 1 and of_expert, type)


def fit(name: str, n_columns: int, wanted: str) -> str:
    """The wanted type, or the nearest one whose blocks divide rows of `n_columns`."""

    def fits(type: str) -> bool:
        return n_columns % GGML_TYPES[TYPE_IDS[type]].block_size == 0

    if fits(wanted):
        return wanted
    if wanted not in FALLBACKS and GGML_TYPES[TYPE_IDS[wanted]].block_size > 32:
        message = f"tensor {shown(name)}: its rows of {n_columns} do not fit {ggml_name(TYPE_IDS[wanted])}"
        raise QuantizeError(
            f"{message}, for which no tensor type fallback is defined", "Choose its type with --tensor-type."
        )
    second = FALLBACKS.get(wanted, wanted)
    return second if fits(second) else "F16"


def _fitting(name: str, n_columns: int, type: str) -> str:
    """A type with an option of its own, which falls back to no other: QuantizeError where it does not fit."""
    if n_columns % GGML_TYPES[TYPE_IDS[type]].block_size:
        raise QuantizeError(
            f"tensor {shown(name)}: its rows of {n_columns} do not fit {ggml_name(TYPE_IDS[type])}",
            "Choose another --token-embedding-type or --output-tensor-type, or leave it out.",
        )
    return type


def needs_imatrix(name: str, type: str, file_type: str) -> bool:
    """Whether a tensor of this type is garbage without weights of importance, or cannot be made at all."""
    if name in TOKEN_EMBDS or name == "output.weight":
        return type in NEEDS_IMPORTANCE
    return type in NEED_IMATRIX or (type == "Q2_K" and file_type == "Q2_K_S")
