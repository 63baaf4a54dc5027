"""The models that benchmarks run on, by short names: the three real ones, those made from them, random ones.

Owns the names and places. make_models.py makes what can be made.
"""

from pathlib import Path

from llmkit.errors import ModelNotFoundError
from llmkit.files.cache_dir import cache_root
from tests.real_models import real_model_path

REAL = ("smollm2", "gemma", "qwen")
CONVERTED = ("smollm2-q8_0", "smollm2-q4_0", "smollm2-f16")
K_AND_I_TYPES = (
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
RANDOM = ("random-q4_k_m", *(f"random-{name.lower()}" for name in K_AND_I_TYPES))
NAMES = (*REAL, *CONVERTED, *RANDOM)
GROUPS = {"k-and-i": RANDOM[1:]}  # the random model as every K- and I-type


def expanded(names: list[str]) -> list[str]:
    """The names, with those of a group in its place."""
    return [one for name in names for one in GROUPS.get(name, (name,))]


def made_path(name: str) -> Path:
    """Where a made model lies, whether it is there or not."""
    return cache_root() / "bench_models" / f"{name}.gguf"


def find_model(name: str) -> Path:
    """The file of a short name, or the file itself; ModelNotFoundError names the script that gets it."""
    if name in REAL:
        found = real_model_path(name)
        script = "scripts/fetch_test_models"
    elif name in NAMES:
        found = made_path(name) if made_path(name).is_file() else None
        script = "scripts/make_bench_models"
    else:
        found = Path(name) if Path(name).is_file() else None
        script = ""
    if found is None:
        hint = f"`{script}` gets it" if script else f"a file, or one of {', '.join(NAMES)}"
        raise ModelNotFoundError(f"the model {name} is not there", hint)
    return found
