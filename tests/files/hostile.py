"""Feeds thousands of broken files to something that opens them, in a process with little memory.

Run by test_hostile.py as `python -m tests.files.hostile N SEED MODULE:FUNCTION FOLDER`; prints one JSON object. The
function takes a path. It may succeed or raise an LlmkitError; anything else, MemoryError included, is a failure,
reported with the number of its mutation: `mutated(bases(folder)[i % 2], SEED, i)` gives its bytes again.
"""

import importlib
import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmkit.errors import LlmkitError
from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.string_array import StringArray
from tests.make_models import make_model

MEMORY_MARGIN = 96 << 20
"""Address space that a run may take on top of what it has when it begins."""

NUMBERS = (
    0,
    1,
    2,
    3,
    5,
    31,
    33,
    255,
    256,
    65535,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 42,
    (1 << 61) + 1,
    1 << 63,
    (1 << 64) - 1,
)
Mutation = Callable[[random.Random, bytearray], None]


def open_and_touch(path: Path) -> None:
    """Open, read every metadata value in every way, and every byte of every tensor."""
    with open_gguf(path) as file:
        for key in file.metadata:
            _touch_value(file, key)
        for name, info in file.tensors.items():
            assert int(file.tensor_bytes(name).sum()) >= 0
            assert info.n_rows * info.row_bytes == info.n_bytes
            assert info.n_elements > 0


def load_and_run(path: Path) -> None:
    """Load the model and compute two tokens, with as large a context as the file asks for."""
    from llmkit.engine.batch import Segment
    from llmkit.engine.context import Context
    from llmkit.models.model import load_model
    from llmkit.params import ContextParams

    with Context(load_model(path), ContextParams(n_ctx=0, n_threads=2)) as ctx:
        ctx.decode([Segment(ctx.new_sequence(), [0, 1], "last")])


def _touch_value(file: GgufFile, key: str) -> None:
    for getter in (file.u32, file.f32, file.str, file.bool, file.array, file.numbers, file.strings):
        try:
            value = getter(key)
            if isinstance(value, StringArray):
                assert len(value.to_bytes_list()) == len(value)
                assert len(value.to_list()) == len(value)
            elif isinstance(value, np.ndarray):
                value.tolist()
        except LlmkitError:
            continue  # a wrong type, or text that is none: the next getter may still fit


def takes_what_it_is_told(path: Path) -> None:
    """An opener with the faults that this module is there to find: test_hostile.py checks that they are found."""
    raw = path.read_bytes()
    n_entries = struct.unpack_from("<Q", raw, 16)[0]
    list(range(n_entries)) if n_entries < 1 << 40 else bytearray(min(n_entries, 1 << 40))
    raw[24:].index(b"tokenizer.ggml.model")


def bases(folder: Path) -> list[bytes]:
    """Two small sound files: a BPE model with quantised tensors, an SPM model with others."""
    small: dict[str, Any] = {"n_layer": 1, "n_embd": 32, "n_ff": 32, "n_head": 2, "n_head_kv": 1}
    bpe = make_model(folder / "bpe.gguf", tokenizer="bpe", type="Q8_0", **small)
    spm = make_model(folder / "spm.gguf", tokenizer="spm", type="Q4_0", arch="gemma3", window_pattern=(1,), **small)
    return [bpe.read_bytes(), spm.read_bytes()]


def mutated(base: bytes, seed: int, i: int) -> bytes:
    """The i-th mutation of `base`: one to three changes, most of them in the header, where they matter."""
    rng = random.Random(f"{seed} {i}")
    content = bytearray(base)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(rng, content)
    return bytes(content)


def _place(rng: random.Random, content: bytearray) -> int:
    """A position: mostly among the first keys or in the tensor table, else anywhere."""
    table = max(content.find(b"token_embd.weight") - 8, 0)
    low, high = rng.choice(((0, 700), (table, table + 900), (table, table + 900), (0, len(content))))
    return rng.randrange(low, max(min(high, len(content)), low + 1))


def _flip(rng: random.Random, content: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 4, 16))):
        if content:
            content[_place(rng, content) % len(content)] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, content: bytearray) -> None:
    place = _place(rng, content)
    content[place : place + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))


def _truncate(rng: random.Random, content: bytearray) -> None:
    del content[rng.choice((_place(rng, content), rng.randrange(len(content) + 1))) :]


def _splice(rng: random.Random, content: bytearray) -> None:
    place, source, n = _place(rng, content), _place(rng, content), rng.choice((1, 4, 8, 40, 400))
    content[place : place + rng.choice((0, n))] = content[source : source + n]


def _cut_out(rng: random.Random, content: bytearray) -> None:
    place = _place(rng, content)
    del content[place : place + rng.choice((1, 4, 8, 33, 300))]


def _patch_number(rng: random.Random, content: bytearray) -> None:
    """Write a number where one stands: where eight bytes are a small count, a length, a dimension or a type."""
    tried = [_place(rng, content) for _ in range(40)]
    place = rng.choice([*(p for p in tried if 0 < _number_at(content, p) < 1 << 20), 8, 16])
    n_bytes = rng.choice((4, 8))
    near = _number_at(content, place) + rng.randint(-2, 2)
    value = rng.choice(NUMBERS) if rng.random() < 0.8 else near
    content[place : place + n_bytes] = (value % (1 << 8 * n_bytes)).to_bytes(n_bytes, "little")


def _number_at(content: bytearray, place: int) -> int:
    return int.from_bytes(content[place : place + 8], "little")


MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _overwrite,
    _truncate,
    _splice,
    _cut_out,
    _patch_number,
    _patch_number,
    _patch_number,
)


def limit_memory(n_bytes: int) -> None:
    """Let this process take at most `n_bytes` of address space more; where that cannot be set (macOS), do without."""
    try:
        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_pages * resource.getpagesize() + n_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (OSError, ValueError):
        pass


def run(n: int, seed: int, opener: Callable[[Path], None], folder: Path) -> dict[str, object]:
    """Feed `n` mutations to `opener`: how many ended in which way, and what failed."""
    sound = bases(folder)
    for base in sound:
        (folder / "m.gguf").write_bytes(base)
        opener(folder / "m.gguf")
    limit_memory(MEMORY_MARGIN)
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    start = time.perf_counter()
    for i in range(n):
        path = folder / "m.gguf"
        path.unlink()  # never written over: an array of the file before may still be mapped
        path.write_bytes(mutated(sound[i % len(sound)], seed, i))
        try:
            opener(path)
            outcomes["opened"] += 1
        except LlmkitError as error:
            outcomes[type(error).__name__] += 1
        except BaseException as error:  # whatever else it is, is what this run is looking for
            outcomes["failed"] += 1
            failures.append(f"{i}: {type(error).__name__}: {str(error)[:200]}")
    return {"outcomes": outcomes, "failures": failures, "seconds": time.perf_counter() - start}


def main(arguments: list[str]) -> None:
    """N SEED MODULE:FUNCTION FOLDER."""
    n, seed, name, folder = arguments
    module, function = name.split(":")
    opener = getattr(importlib.import_module(module), function)
    sys.stdout.write(json.dumps(run(int(n), int(seed), opener, Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
