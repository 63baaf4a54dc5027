"""The mixture rules, as data: which tensors get more (or fewer) bits than the file type's default.

Owns the table and the words its conditions are made of. Knows nothing of overrides and shapes (choose.py). Source:
llama.cpp b11434, llama_tensor_get_type_impl; tests compare every file type with what llama-quantize decides.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What the rules ask about a model. gqa: query heads for each KV head; n_layer counts all blocks."""

    arch: str
    n_layer: int
    n_head: int
    n_head_kv: int
    n_expert: int
    n_attn_v: int
    has_imatrix: bool

    @property
    def gqa(self) -> int:
        """Rounded down; 0 without KV heads."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """What llama.cpp calls a 70B model: by architecture and number of layers."""
        if self.arch == "llama" and self.n_layer == 80:
            return self.n_expert != 8 and self.n_head != self.n_head_kv
        return (self.arch, self.n_layer) in {("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)}


@dataclass(frozen=True)
class Case:
    """One tensor in front of the rules. i of n: its layer; `type`: what has been decided so far."""

    facts: Facts
    i: int
    n: int
    is_3d: bool
    type: str


CONDITIONS: dict[str, Callable[[Case], bool]] = {
    "gqa >= 4": lambda c: c.facts.gqa >= 4,
    "gqa >= 4 or 4 experts": lambda c: c.facts.gqa >= 4 or c.facts.n_expert >= 4,
    "8 experts": lambda c: c.facts.n_expert == 8,
    "not 8 experts": lambda c: c.facts.n_expert != 8,
    "imatrix": lambda c: c.facts.has_imatrix,
    "no imatrix": lambda c: not c.facts.has_imatrix,
    "falcon": lambda c: c.facts.arch == "falcon",
    "not falcon": lambda c: c.facts.arch != "falcon",
    "70B": lambda c: c.facts.is_70b,
    "3-D": lambda c: c.is_3d,
    "i < 2": lambda c: c.i < 2,
    "i < 4": lambda c: c.i < 4,
    "i < n/8": lambda c: c.i < c.n // 8,
    "i < n/16": lambda c: c.i < c.n // 16,
    "n/8 <= i < 7n/8": lambda c: c.n // 8 <= c.i < 7 * c.n // 8,
    "more": lambda c: more_bits(c.i, c.n),
    "q3_K or q4_K": lambda c: c.type in ("Q3_K", "Q4_K"),
    "not q8_0": lambda c: c.type != "Q8_0",
}


def more_bits(i: int, n: int) -> bool:
    """Whether layer i of n is among those that get more bits: the first and last eighth, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass(frozen=True)
class Rule:
    """In the file types named, a tensor that meets all conditions gets `type`."""

    file_types: tuple[str, ...]
    type: str
    when: tuple[str, ...] = ()

    def holds(self, file_type: str, case: Case) -> bool:
        """Whether the rule decides this case."""
        return (not self.file_types or file_type in self.file_types) and all(CONDITIONS[w](case) for w in self.when)


def _rules(*rows: tuple[str, ...]) -> tuple[Rule, ...]:
    """Rows of (file types or `any`, type, conditions ...)."""
    return tuple(Rule(() if t == "any" else tuple(t.split()), type, tuple(when)) for t, type, *when in rows)


LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""The file types with a table of their own."""

# In every table the first rule that holds decides; where none does, the default type stays.

OUTPUT_RULES = _rules(  # the output matrix, or the token embedding that is used as one
    ("MXFP4_MOE", "Q8_0"),
    ("any", "Q8_0", "falcon"),
    ("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS", "Q5_K"),
    ("any", "Q6_K", "not q8_0"),
)

MXFP4_RULES = _rules(("any", "MXFP4", "3-D"), ("any", "Q8_0"))

TOKEN_EMBD_RULES = _rules(
    ("IQ2_XXS IQ2_XS IQ1_S IQ1_M", "Q2_K"),
    ("IQ2_S IQ2_M IQ3_XXS", "IQ3_S"),
    ("TQ1_0 TQ2_0 Q2_0", "Q4_K"),
)

LOWEST_RULES = {
    "attn_v": _rules(
        ("any", "Q4_K", "gqa >= 4 or 4 experts"),
        ("IQ2_S IQ2_M", "IQ3_S"),
        ("any", "Q2_K"),
    ),
    "attn_k": _rules(("any", "Q4_K", "8 experts")),
    "ffn_down": _rules(("IQ2_S IQ2_M", "IQ3_S", "i < n/8"), ("any", "Q2_K", "i < n/8")),
    "attn_output": _rules(
        ("any", "Q5_K", "8 experts"),
        ("IQ1_S IQ1_M", "IQ2_XXS"),
        ("IQ2_S IQ2_M", "IQ3_S"),
    ),
}

RULES = {
    "attn_v": _rules(
        ("Q2_K", "Q4_K", "gqa >= 4"),
        ("Q2_K", "Q3_K"),
        ("Q2_K_S", "Q4_K", "gqa >= 4"),
        ("IQ3_XXS", "Q4_K", "gqa >= 4"),
        ("IQ3_XXS", "IQ3_XXS", "imatrix"),
        ("IQ3_XXS", "IQ3_S"),
        ("IQ3_XS IQ3_S", "Q4_K", "gqa >= 4"),
        ("IQ3_M", "Q4_K"),
        ("Q3_K_M", "Q5_K", "i < 2"),
        ("Q3_K_M", "Q4_K"),
        ("Q3_K_L", "Q5_K"),
        ("IQ4_NL IQ4_XS", "Q5_K", "gqa >= 4"),
        ("Q4_K_M Q5_K_M", "Q6_K", "more"),
        ("Q4_K_S", "Q5_K", "i < 4"),
    ),
    "attn_k": _rules(
        ("any", "Q8_0", "8 experts"),
        ("IQ3_XS", "IQ3_XXS"),
        ("IQ3_XXS", "IQ2_S"),
    ),
    "attn_q": _rules(("IQ3_XS", "IQ3_XXS"), ("IQ3_XXS", "IQ2_S")),
    "ffn_down": _rules(
        ("Q2_K", "Q3_K"),
        ("Q2_K_S", "Q4_K", "i < n/8"),
        ("IQ3_XXS", "Q4_K", "no imatrix", "i < n/8"),
        ("IQ3_XXS", "Q3_K", "no imatrix"),
        ("Q3_K_M", "Q5_K", "i < n/16"),
        ("Q3_K_M", "Q4_K", "not falcon"),
        ("Q3_K_M", "Q4_K", "more"),
        ("Q3_K_M", "Q3_K"),
        ("IQ3_M", "Q4_K", "i < n/8"),
        ("IQ3_M", "Q4_K", "8 experts", "more"),
        ("Q3_K_L", "Q4_K", "falcon"),
        ("Q3_K_L", "Q5_K"),
        ("Q4_K_M", "Q6_K", "falcon", "i < n/16"),
        ("Q4_K_M", "Q5_K", "falcon", "more"),
        ("Q4_K_M", "Q4_K", "falcon"),
        ("Q4_K_M", "Q6_K", "more"),
        ("IQ4_NL IQ4_XS", "Q5_K", "i < n/8", "no imatrix"),
        ("Q5_K_M", "Q6_K", "more"),
        ("Q4_K_S", "Q5_K", "not falcon", "i < n/8"),
        ("Q4_0", "Q4_1", "imatrix", "i < n/8"),
        ("Q5_0", "Q5_1", "imatrix", "i < n/8"),
    ),
    "attn_output": _rules(
        ("Q3_K_L", "Q4_K", "falcon"),
        (
            "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS",
            *("Q5_K", "not falcon", "8 experts"),
        ),
        ("Q2_K", "Q3_K", "not falcon", "not 8 experts"),
        ("IQ3_XXS", "IQ3_S", "not falcon", "not 8 experts"),
        ("Q3_K_M", "Q4_K", "not falcon", "not 8 experts"),
        ("Q3_K_L", "Q5_K", "not falcon", "not 8 experts"),
        ("IQ3_M", "Q4_K", "not falcon", "not 8 experts"),
    ),
    "ffn_gate": _rules(("IQ3_XS", "IQ3_XXS", "n/8 <= i < 7n/8")),
    "ffn_up": _rules(("IQ3_XS", "IQ3_XXS", "n/8 <= i < 7n/8")),
}

AFTER_RULES = {  # all of them are applied, one after the other, to what the table above gave
    "attn_v": _rules(("any", "Q5_K", "70B", "q3_K or q4_K"), ("any", "Q8_0", "8 experts")),
}


def decide(rules: tuple[Rule, ...], file_type: str, case: Case) -> str:
    """The type of the first rule that holds, or the one that the case has."""
    return next((rule.type for rule in rules if rule.holds(file_type, case)), case.type)
