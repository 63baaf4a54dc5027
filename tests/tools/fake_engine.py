"""A model for the tests of `llmkit run`: bytes are tokens, and the answer is written down beforehand."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmkit.engine.generation.timings import Timings
from llmkit.files.gguf_metadata import TypedMetadata
from llmkit.params import ContextParams
from llmkit.tools import _chat as chat_module
from llmkit.tools import run as run_module
from tests.engine.fakes import FakeContext, Row

BOS, EOS, N_VOCAB = 256, 257, 258


class ByteTokenizer:
    """Token n is byte n; 256 begins a text and 257 ends one."""

    eog_ids = frozenset({EOS})
    suppressed_ids = frozenset[int]()

    def __init__(self, add_bos: bool = True) -> None:
        self.add_bos = add_bos

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [BOS] * (self.add_bos and add_special) + list(text.encode())

    def piece_bytes(self, id: int, special: bool = False) -> bytes:
        return bytes([id]) if id < 256 else b"<bos><eos>"[5 * (id - BOS) :][:5] if special else b""

    def decode(self, ids: list[int], special: bool = False) -> str:
        return b"".join(self.piece_bytes(i, special) for i in ids).decode("utf-8", "replace")

    def stream(self) -> Any:
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return SimpleNamespace(
            push=lambda id: decoder.decode(self.piece_bytes(id)), finish=lambda: decoder.decode(b"", final=True)
        )


def answering(answer: bytes) -> Callable[[list[int]], Row]:
    """A script that is fairly sure of the answer, token by token, and then of EOS; the first call shows the prompt."""
    n_prompt: list[int] = []

    def script(tokens: list[int]) -> Row:
        n_prompt.append(len(tokens))
        n_generated = len(tokens) - n_prompt[0]
        row = np.zeros(N_VOCAB, dtype=np.float32)
        row[answer[n_generated] if n_generated < len(answer) else EOS] = 8
        row[ord("?")] += 5
        return row

    return script


class FakeEngine:
    """Takes the place of `open_engine`; keeps the contexts it made and what was asked for."""

    def __init__(self, answer: bytes = b" world", *, tokenizer: bool = True, add_bos: bool = True) -> None:
        self.answer = answer
        self.tokenizer = ByteTokenizer(add_bos) if tokenizer else None
        self.contexts: list[FakeContext] = []
        self.models: list[str | None] = []
        self.params: list[ContextParams] = []
        self.on_decode: Callable[[], None] = lambda: None
        self.script: Callable[[list[int]], Row] | None = None  # instead of the answer
        self.rewind = "any"  # "points": as memory with windows

    @property
    def ctx(self) -> FakeContext:
        return self.contexts[-1]

    @contextmanager
    def open(
        self,
        model_name: str | None,
        params: ContextParams,
        timings: Timings,
        *,
        needs_text: bool,
        overrides: Sequence[str] = (),
    ) -> Iterator[run_module.Engine]:
        self.models.append(model_name)
        self.params.append(params)
        ctx = FakeContext(self.script or answering(self.answer), n_ctx=params.n_ctx or 512, n_vocab=N_VOCAB)
        ctx.on_decode = lambda: self.on_decode()
        ctx.memory.rewind = self.rewind
        self.contexts.append(ctx)
        gguf = TypedMetadata({}, "fake")  # without a chat template: chatml is taken
        config = SimpleNamespace(n_vocab=N_VOCAB)
        model: Any = SimpleNamespace(name="fake", config=config, gguf=gguf, tokenizer=self.tokenizer)
        ctx.model = model
        yield run_module.Engine(model, self.tokenizer, ctx)  # type: ignore[arg-type]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeEngine":
        monkeypatch.setattr(run_module, "open_engine", self.open)
        monkeypatch.setattr(chat_module, "open_engine", self.open)
        return self
