"""The file types that can be asked for: name, number in `general.file_type`, default tensor type.

Owns the table, in the order in which llama-quantize lists it, and how a name or number is read. Source: llama.cpp
b11434, tools/quantize and llama_ftype_get_default_type.
"""

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class FileType:
    """`default`: the tensor type (ggml's upper-case name) where no rule says otherwise; empty for COPY."""

    name: str
    number: int
    default: str
    about: str = ""

    @property
    def is_copy(self) -> bool:
        """Whether tensors are only copied."""
        return not self.default


FILE_TYPES: tuple[FileType, ...] = tuple(
    FileType(*row)
    for row in (
        ("Q1_0", 40, "Q1_0", "1.125 bits per weight"),
        ("Q2_0", 41, "Q2_0", "2.25 bits per weight"),
        ("Q4_0", 2, "Q4_0", "4.5 bits per weight"),
        ("Q4_1", 3, "Q4_1", "5 bits per weight"),
        ("MXFP4_MOE", 38, "MXFP4", "experts MXFP4, all else Q8_0"),
        ("Q5_0", 8, "Q5_0", "5.5 bits per weight"),
        ("Q5_1", 9, "Q5_1", "6 bits per weight"),
        ("IQ2_XXS", 19, "IQ2_XXS", "2.06 bits per weight; needs an importance matrix"),
        ("IQ2_XS", 20, "IQ2_XS", "2.31 bits per weight; needs an importance matrix"),
        ("IQ2_S", 28, "IQ2_XS", "2.5 bits per weight; needs an importance matrix"),
        ("IQ2_M", 29, "IQ2_S", "2.7 bits per weight; needs an importance matrix"),
        ("IQ1_S", 24, "IQ1_S", "1.56 bits per weight; needs an importance matrix"),
        ("IQ1_M", 31, "IQ1_M", "1.75 bits per weight; needs an importance matrix"),
        ("TQ1_0", 36, "TQ1_0", "1.69 bits per weight, ternary"),
        ("TQ2_0", 37, "TQ2_0", "2.06 bits per weight, ternary"),
        ("Q2_K", 10, "Q2_K", "mixture around 2.6 bits per weight"),
        ("Q2_K_S", 21, "Q2_K", "like Q2_K, smaller; needs an importance matrix"),
        ("IQ3_XXS", 23, "IQ3_XXS", "3.06 bits per weight; needs an importance matrix"),
        ("IQ3_S", 26, "IQ3_S", "3.44 bits per weight"),
        ("IQ3_M", 27, "IQ3_S", "mixture of 3.66 bits per weight"),
        ("Q3_K", 12, "Q3_K", "the same as Q3_K_M"),
        ("IQ3_XS", 22, "IQ3_S", "3.3 bits per weight; needs an importance matrix"),
        ("Q3_K_S", 11, "Q3_K", "3.44 bits per weight"),
        ("Q3_K_M", 12, "Q3_K", "mixture around 3.9 bits per weight"),
        ("Q3_K_L", 13, "Q3_K", "mixture around 4.3 bits per weight"),
        ("IQ4_NL", 25, "IQ4_NL", "4.5 bits per weight, non-linear"),
        ("IQ4_XS", 30, "IQ4_XS", "4.25 bits per weight, non-linear"),
        ("Q4_K", 15, "Q4_K", "the same as Q4_K_M"),
        ("Q4_K_S", 14, "Q4_K", "4.5 bits per weight, a few tensors more"),
        ("Q4_K_M", 15, "Q4_K", "mixture around 4.8 bits per weight"),
        ("Q5_K", 17, "Q5_K", "the same as Q5_K_M"),
        ("Q5_K_S", 16, "Q5_K", "5.5 bits per weight"),
        ("Q5_K_M", 17, "Q5_K", "mixture around 5.7 bits per weight"),
        ("Q6_K", 18, "Q6_K", "6.56 bits per weight"),
        ("Q8_0", 7, "Q8_0", "8.5 bits per weight"),
        ("F16", 1, "F16", "16 bits per weight"),
        ("BF16", 32, "BF16", "16 bits per weight"),
        ("F32", 0, "F32", "32 bits per weight"),
        ("COPY", 0, "", "write the tensors as they are"),
    )
)

FLOATS = ("F32", "F16", "BF16")
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def find_file_type(text: str) -> FileType | None:
    """The file type of a name in any case, or of a number; None when there is none. An alias keeps its own name."""
    for file_type in FILE_TYPES:
        if file_type.name == text.upper():
            return file_type
    if text.isdecimal():
        return next((file_type for file_type in FILE_TYPES if file_type.number == int(text)), None)
    return None


def parse_file_type(text: str) -> FileType:
    """Like `find_file_type`; UsageError names what there is."""
    found = find_file_type(text)
    if found is None:
        names = ", ".join(file_type.name for file_type in FILE_TYPES)
        known = " NVFP4 files can be read but not made." if text.upper() == "NVFP4" or text == "39" else ""
        raise UsageError(f"invalid file type {text!r}", f"One of {names}, or its number.{known}")
    return found


def rule_name(file_type: FileType) -> str:
    """The name by which the mixture rules know it."""
    return _ALIASES.get(file_type.name, file_type.name)


def guessed_number(tensor_type: str) -> int:
    """The number for a file that has none, by its most frequent tensor type; llama.cpp marks a guess with 1024."""
    numbers = {file_type.default: file_type.number for file_type in reversed(FILE_TYPES)}
    return 1024 | {**numbers, "IQ2_S": 28, "NVFP4": 39, "MXFP4": 0}.get(tensor_type, 0)
