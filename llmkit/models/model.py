"""A loaded model: the file, its hyper-parameters and its weights, ready for contexts to build plans on."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.gguf_values import Entry
from llmkit.files.overrides import lay_over
from llmkit.files.pages import done_with
from llmkit.kernels.plan import PLAN_FIELDS  # compiles what every plan needs
from llmkit.memory.kinds import MemoryLayout, memory_layout
from llmkit.memory.kv_layout import KvLayout, rotation_wanted
from llmkit.models.config import Config, read_config
from llmkit.models.family import Family
from llmkit.models.fingerprint import fingerprint, overridden_fingerprint
from llmkit.models.graph import Graph
from llmkit.models.input_squares import InputSquares
from llmkit.models.inputs import PlanInputs
from llmkit.models.key_shift import build_key_shift
from llmkit.models.packed import PackedWeights, Progress, load_packed
from llmkit.models.registry import family
from llmkit.models.transformer import Transformer
from llmkit.models.values import Value
from llmkit.models.weights import Weights

if TYPE_CHECKING:
    from llmkit.tokenizer import Tokenizer
    from llmkit.tokenizer.chat_template import ChatTemplate

assert PLAN_FIELDS


class Model:
    """A model whose tensors have all been checked. Contexts share it; it owns the mapped file and the tiles.

    `Model.open` makes one by its name, `load_model` from a file.
    """

    def __init__(
        self, gguf: GgufFile, config: Config, weights: Weights, kind: Family, overrides: dict[str, Entry]
    ) -> None:
        self.gguf, self.config, self.weights, self._family = gguf, config, weights, kind
        self._overrides = overrides
        self.added_keys: list[str] = []
        self.packed: PackedWeights | None = None

    @property
    def arch(self) -> str:
        return self.config.arch

    @property
    def name(self) -> str:
        """`general.name`, else the file's."""
        return self.gguf.str("general.name", self.gguf.path.stem)

    @property
    def file_bytes(self) -> int:
        return self.gguf.n_bytes

    @classmethod
    def open(cls, name: str | os.PathLike[str] | None = None, *, n_threads: int = 2) -> Model:
        """The model that `-m` would mean: a path, a name, an address that was pulled; without one the default model.

        n_threads: for packing the weights, once. Errors: ModelNotFoundError, with the command that fetches it, and
        those of `load_model`.
        """
        from llmkit.files.models_table import resolve_model

        return load_model(resolve_model(None if name is None else os.fspath(name)), n_threads=n_threads)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Texts to ids and back; TokenizerError if the file has no tokenizer that works."""
        from llmkit.tokenizer import load_tokenizer

        return load_tokenizer(self.gguf)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Messages to a prompt: the file's own template, else chatml; ChatTemplateError if it is broken."""
        from llmkit.tokenizer.chat_template import load_chat_template

        return load_chat_template(self.gguf)

    def layout(self, type_k: str, type_v: str) -> KvLayout:
        """How this model's K and V lie in a block."""
        config = self.config
        return KvLayout(config.n_layer, config.n_head_kv, config.head_dim, type_k, type_v, rotation_wanted())

    @property
    def n_positions(self) -> int:
        """How many positions the model knows, 0 for any number."""
        return self.config.n_ctx_train if self.weights.has("position_embd.weight") else 0

    def memory_layout(self, type_k: str, type_v: str, n_ctx: int, *, swa_full: bool = True) -> MemoryLayout:
        """The kinds of memory that a context of this size has."""
        return memory_layout(self.config.windows, self.layout(type_k, type_v), n_ctx, swa_full=swa_full)

    @property
    def can_shift(self) -> bool:
        """Whether keys can be turned to other positions: not where these have several parts, or are learned."""
        return not self.config.multi_rope and self.n_positions == 0

    @property
    def has_rope(self) -> bool:
        """Whether any layer's keys depend on positions."""
        return self.config.n_rot > 0 and any(self.config.has_rope)

    def rope_record(self, n_ctx: int) -> dict[str, object]:
        """All that decides how keys are rotated in a context of this size, besides the file's own tensors."""
        config = self.config
        kinds = {"full": config.rope, "window": config.rope_window}
        return {
            **{name: [r.base, r.scale, r.table_scale, *(r.corners or ())] for name, r in kinds.items()},
            "n_rot": config.n_rot,
            "sections": list(config.rope_sections),
            "layers": [int(has) for has in config.has_rope],
            "factors": "long" if self._family.attention.rope_factors and n_ctx > config.n_ctx_orig else "short",
        }

    def build(
        self,
        inputs: PlanInputs,
        memory: MemoryLayout,
        block_addresses: list[int],
        n_ctx: int = 0,
        collector: InputSquares | None = None,
    ) -> tuple[Graph, Value]:
        """The forward pass as a graph, and its logits. n_ctx: the context's size."""
        graph = Graph(inputs, memory, block_addresses, collector=collector)
        return graph, Transformer(graph, self._family, self.config, self.weights, n_ctx).build()

    def build_key_shift(
        self, inputs: PlanInputs, memory: MemoryLayout, block_addresses: list[int], n_ctx: int
    ) -> tuple[Graph, Value]:
        """What turns keys as a graph, and the value that stands for its end."""
        graph = Graph(inputs, memory, block_addresses)
        transformer = Transformer(graph, self._family, self.config, self.weights, n_ctx)
        return graph, build_key_shift(graph, transformer)

    def fingerprint(self) -> str:
        """SHA-256 of the file; of that and the metadata laid over it, where there is any."""
        digest = self.file_fingerprint()
        return digest if not self._overrides else overridden_fingerprint(digest, self._overrides)

    def file_fingerprint(self) -> str:
        """SHA-256 of the file (of the digests of all parts, where it is split)."""
        return fingerprint(self.gguf.paths)


def load_model(
    path: str | os.PathLike[str],
    *,
    n_threads: int = 2,
    progress: Progress | None = None,
    overrides: dict[str, Entry] | None = None,
) -> Model:
    """Opens and checks a GGUF file and packs its matrices (or maps them, packed before).

    progress(done, total): bytes packed. overrides: metadata laid over the file's (files/overrides.py). Errors:
    ModelFileError's subclasses, UnsupportedError for what does not run, UsageError for what cannot be overridden.
    """
    gguf = open_gguf(Path(path))
    added = lay_over(gguf, overrides or {})
    kind = family(gguf.str("general.architecture"))
    weights = Weights(gguf)
    config = read_config(gguf, weights.n_vocab(), kind)
    model = Model(gguf, config, weights, kind, overrides or {})
    model.added_keys = added
    # First builds, of which nothing is run, ask for every tensor and so check them all: those of any context's size.
    for n_ctx in (1, config.n_ctx_train):
        model.build(PlanInputs(1), model.memory_layout("f16", "f16", n_ctx), [0], n_ctx)
    model.packed = load_packed(weights.matrices.values(), model.file_fingerprint, n_threads, progress)
    for data in gguf.maps:  # what was read once: matrices are multiplied from their packed form
        done_with(data)
    return model
