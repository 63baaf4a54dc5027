"""States that must not be used: each is refused by the class of its reason, and nothing has changed."""

import itertools
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from tests import engine_runs as runs
from tests.engine.state.states import IDS, SIZES, counted
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.context import Context  # noqa: E402
from llmkit.engine.state.save_load import load_state, read_state_info, save_state  # noqa: E402
from llmkit.files import state_errors as e  # noqa: E402
from llmkit.files.overrides import parse_overrides  # noqa: E402
from llmkit.models.model import load_model  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402
from llmkit.simd import target  # noqa: E402

SMALL = {**SIZES, "n_embd": 64, "n_head": 2, "n_head_kv": 1, "head_dim": 32, "n_layer": 1}
WINDOW = {**SMALL, "n_layer": 2, "window": 48, "window_pattern": (1, 0)}


@dataclass
class Case:
    """A context in use, a file that it can load, and what it holds: a sequence, and the logits that come next."""

    ctx: Context
    seq: Any
    path: Path
    next_row: np.ndarray
    fresh_rows: np.ndarray

    def unchanged(self) -> None:
        """Fails unless the sequence goes on as before."""
        assert self.seq.n_tokens == 70
        assert counted(self.ctx)

    def goes_on(self) -> None:
        """The same to the bit, and a fresh prompt's logits too."""
        self.unchanged()
        runs.assert_same_bits(runs.feed(self.ctx, [(self.seq, IDS[70:72])]), self.next_row, "after a refusal")
        self.ctx.kv.truncate(self.seq, 70)
        runs.assert_same_bits(runs.prefill(self.ctx, IDS[100:140], 40), self.fresh_rows, "a fresh prompt")

    def refused(self, error: type[e.StateError], match: str | None = None) -> None:
        with pytest.raises(e.StateError, match=match) as caught:
            load_state(self.ctx, self.path, self.seq)
        assert type(caught.value) is error, caught.value
        assert str(self.path) in caught.value.message
        self.unchanged()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[Case]:
    path = make_model(folder / "m.gguf", arch="gemma3", **WINDOW)
    with runs.context(path, kv="q8_0", n_ctx=256, n_threads=1) as ctx:
        seq = ctx.new_sequence()
        row = runs.feed(ctx, [(seq, IDS[:70])])[-1]
        save_state(ctx, folder / "good", seq, metadata={"a": "b"}, logits=row)
        want = runs.feed(ctx, [(seq, IDS[70:72])])
        ctx.kv.truncate(seq, 70)
        yield Case(ctx, seq, folder / "good", want, runs.prefill(ctx, IDS[100:140], 40))


@pytest.fixture
def case(opened: Case, tmp_path: Path) -> Iterator[Case]:
    """The same with a file of its own, at the end of which the context still gives the same bits."""
    path = tmp_path / "a.state"
    path.write_bytes(opened.path.read_bytes())
    yield replace(opened, path=path)
    opened.goes_on()


def resealed(data: bytearray) -> bytes:
    """The file with the header's checksum made right: what somebody who means harm would write."""
    end = struct.unpack_from("<Q", data, 24)[0]
    struct.pack_into("<Q", data, end - 8, xxhash.xxh3_64_intdigest(bytes(data[: end - 8])))
    return bytes(data)


# -- damage -------------------------------------------------------------------------------------------------------


def test_any_flipped_byte(case: Case) -> None:
    """Each of the first 64, one in 5 of the header, and one in each 1 KiB (and at its end) of the rest."""
    data = bytearray(case.path.read_bytes())
    header = struct.unpack_from("<Q", data, 24)[0]
    places = [*range(64), *range(64, header, 5), *range(header - 9, len(data), 1024), len(data) - 1]
    kinds = set()
    for place in places:
        data[place] ^= 0x10
        case.path.write_bytes(data)
        data[place] ^= 0x10
        with pytest.raises(e.StateError) as caught:
            load_state(case.ctx, case.path, case.seq)
        kinds.add(type(caught.value))
    assert kinds == {e.NotAStateError, e.StateVersionError, e.StateTruncatedError, e.StateDamagedError}


def test_any_length(case: Case) -> None:
    data = case.path.read_bytes()
    for n in [*range(1, 200), *range(200, len(data), 1024), len(data) - 1]:
        case.path.write_bytes(data[:n])
        case.refused(e.StateTruncatedError)
    for more in (1, 4096):
        case.path.write_bytes(data + bytes(more))
        case.refused(e.StateDamagedError, "follow its end")
    case.path.write_bytes(bytes(len(data)))
    case.refused(e.NotAStateError, "no state file")


def test_blocks_that_are_swapped_or_zero(case: Case) -> None:
    data = case.path.read_bytes()
    pages = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    swapped = 0
    for i, j in itertools.combinations(range(1, len(pages)), 2):
        mixed = list(pages)
        mixed[i], mixed[j] = pages[j], pages[i]
        if mixed == pages:
            continue
        swapped += 1
        case.path.write_bytes(b"".join(mixed))
        case.refused(e.StateDamagedError)
    assert swapped > 3
    for i in range(1, len(pages)):
        if any(pages[i]):
            case.path.write_bytes(b"".join([*pages[:i], bytes(len(pages[i])), *pages[i + 1 :]]))
            case.refused(e.StateDamagedError, "checksum")


def test_a_header_that_lies(case: Case) -> None:
    """Random bytes of the header changed, its checksum made right: refused, or loaded as some possible state."""
    good = case.path.read_bytes()
    header = struct.unpack_from("<Q", good, 24)[0]
    rng = np.random.default_rng(0)
    n_loaded = 0
    for _ in range(500):
        data = bytearray(good)
        for place in rng.integers(8, header - 8, rng.integers(1, 4)):
            data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, data[place] ^ (1 << int(rng.integers(8)))])
        case.path.write_bytes(resealed(data) if struct.unpack_from("<Q", data, 24)[0] == header else bytes(data))
        seq = case.ctx.new_sequence()
        try:
            load_state(case.ctx, case.path, seq)
            runs.feed(case.ctx, [(seq, [1, 2])])
            n_loaded += 1
        except e.StateError:
            assert seq.n_tokens == 0
        finally:
            case.ctx.free_sequence(seq)
    assert 0 < n_loaded < 250  # tokens and names may be others
    case.unchanged()


def described(case: Case, change: Any) -> None:
    """Changes the description of the case's file, whose length must stay."""
    data = bytearray(case.path.read_bytes())
    n = struct.unpack_from("<I", data, 32)[0]
    text = change(data[64 : 64 + n].decode())
    assert len(text) == n
    data[64 : 64 + n] = text.encode()
    case.path.write_bytes(resealed(data))


@pytest.mark.parametrize("text", ["[" * 9, '{"a":', "null", '"x"', '{"model":{}}', '{"metadata":[]}', "\udcff"])
def test_a_description_of_something_else(case: Case, text: str) -> None:
    data = bytearray(case.path.read_bytes())
    n = struct.unpack_from("<I", data, 32)[0]
    raw = text.encode("utf-8", "surrogateescape")
    data[64 : 64 + n] = (raw * (n // len(raw)) if text == "[" * 9 else raw).ljust(n)[:n]
    case.path.write_bytes(resealed(data))
    case.refused(e.StateDamagedError)


# -- no state file ------------------------------------------------------------------------------------------------


def test_what_is_no_state_file(case: Case, tmp_path: Path) -> None:
    others = {
        b"": "empty",
        b"\x80\x04\x95\x10\x00\x00\x00": "pickle",
        b"GGUF\x03\x00\x00\x00": "model",
        b"qsgg\x04\x00\x00\x00": "llama.cpp sequence",
        b"nsgg\x0b\x00\x00\x00": "llama.cpp session",
        b"PK\x03\x04rest": "zip",
        b"hello, this is text": "no state file",
    }
    for data, word in others.items():
        case.path.write_bytes(data)
        case.refused(e.NotAStateError, word)
    case.path = tmp_path / "fifo"
    os.mkfifo(case.path)
    case.refused(e.NotAStateError, "pipe")
    case.path = tmp_path
    case.refused(e.NotAStateError, "directory")
    case.path = tmp_path / "loop"
    case.path.symlink_to(case.path)
    case.refused(e.NotAStateError, "symbolic links")
    case.path = Path("/dev/null")
    case.refused(e.NotAStateError, "no regular file")
    case.path = tmp_path / "absent"
    case.refused(e.NotAStateError, "No such file")
    with pytest.raises(e.NotAStateError, match="null"):
        read_state_info("a\0b")


# -- another model, another context -------------------------------------------------------------------------------


def refused_by(path: Path, model: Any, error: type[e.StateError], match: str | None = None, **params: Any) -> None:
    """Loading with this model and these parameters is refused, with nothing left behind."""
    options: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "type_k": "q8_0", "type_v": "q8_0", **params}
    with Context(model, ContextParams(**options)) as ctx:
        seq = ctx.new_sequence()
        with pytest.raises(e.StateError, match=match) as caught:
            load_state(ctx, path, seq)
        assert type(caught.value) is error, caught.value
        assert caught.value.hint
        assert seq.n_tokens == 0
        assert ctx.kv.pool.n_used == 0


def test_another_model(opened: Case, folder: Path) -> None:
    for i, changes in enumerate(({"seed": 1}, {"n_layer": 3, "window_pattern": (1, 0, 0)})):
        path = make_model(folder / f"other{i}.gguf", arch="gemma3", **{**WINDOW, **changes})
        refused_by(opened.path, load_model(path), e.StateModelError, "another model")
    path = make_model(folder / "f16.gguf", arch="gemma3", type="F16", **WINDOW)
    refused_by(opened.path, load_model(path), e.StateQuantizationError, "another quantisation")


def test_other_metadata(opened: Case, folder: Path) -> None:
    for text, error in (
        ("gemma3.rope.freq_base=float:20000", e.StateRopeError),
        ("gemma3.rope.scaling.factor=float:2", e.StateRopeError),
        ("gemma3.attention.layer_norm_rms_epsilon=float:0.01", e.StateModelError),
    ):
        model = load_model(folder / "m.gguf", overrides=parse_overrides([text]))
        refused_by(opened.path, model, error)


def test_other_factors_in_a_longer_context(folder: Path) -> None:
    """Models with LongRoPE rotate keys otherwise where the context is longer than the one they were trained for."""
    metadata = {"phi3.rope.scaling.type": "longrope", "phi3.rope.scaling.original_context_length": 128}
    model = load_model(make_model(folder / "phi3.gguf", arch="phi3", metadata=metadata, n_ctx_train=1024))
    with Context(model, ContextParams(n_ctx=128, n_threads=1)) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:20])])
        save_state(ctx, folder / "short", seq)
    refused_by(folder / "short", model, e.StateRopeError, "factors", type_k="f16", type_v="f16")


def test_another_context(opened: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = opened.path, runs.load(folder / "m.gguf")
    refused_by(path, model, e.StateKvTypeError, "keys have the type", type_k="f16")
    refused_by(path, model, e.StateKvTypeError, "values have the type", type_v="q4_0")
    refused_by(path, model, e.StateWindowError, "without --swa-full", swa_full=True)
    refused_by(path, model, e.StateDoesNotFitError, "70 tokens do not fit", n_ctx=64)
    monkeypatch.setattr("llmkit.engine.state.match.NUMERICS_ID", target.NUMERICS_ID + "x")
    refused_by(path, model, e.StateNumericsError, "llmkit-1")


def test_rotation_of_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(make_model(folder / "64.gguf", arch="llama", **{**SMALL, "head_dim": 64, "n_embd": 128}))
    with Context(model, ContextParams(n_ctx=256, n_threads=1, type_k="q8_0", type_v="q8_0")) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:40])])
        save_state(ctx, folder / "rotated", seq)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    refused_by(folder / "rotated", model, e.StateKvTypeError, "n_rot_k")


def test_a_smaller_context_that_it_fits(folder: Path) -> None:
    """Only what does not fit is refused, by tokens or by free blocks."""
    model = load_model(make_model(folder / "llama.gguf", arch="llama", **SMALL))
    with Context(model, ContextParams(n_ctx=1024, n_threads=1)) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:90])])
        save_state(ctx, folder / "small", seq)
    with Context(model, ContextParams(n_ctx=128, n_threads=1)) as ctx:
        other, seq = ctx.new_sequence(), ctx.new_sequence()
        runs.feed(ctx, [(other, IDS[:33])])
        with pytest.raises(e.StateDoesNotFitError, match="3 blocks of 32 tokens are needed, 2 are free"):
            load_state(ctx, folder / "small", seq)
        assert counted(ctx)
        ctx.kv.truncate(other, 32)
        load_state(ctx, folder / "small", seq)
        runs.feed(ctx, [(seq, IDS[90:96])])
        assert counted(ctx)


def test_a_newer_version(case: Case) -> None:
    data = bytearray(case.path.read_bytes())
    struct.pack_into("<I", data, 8, 2)
    case.path.write_bytes(resealed(data))
    case.refused(e.StateVersionError, "version 2; this llmkit reads up to 1")


def test_two_tokens_in_one_cell(case: Case) -> None:
    """A shift would turn the key twice."""
    data = bytearray(case.path.read_bytes())
    n_text, n_kinds = struct.unpack_from("<II", data, 32)
    columns = -(-(64 + n_text) // 8) * 8 + 40 * n_kinds + 8
    cells = columns + 4 * 70 * 3
    assert struct.unpack_from("<2I", data, cells) == (0, 1)
    struct.pack_into("<I", data, cells + 4, 0)
    case.path.write_bytes(resealed(data))
    case.refused(e.StateDamagedError, "two tokens in one cell")


def with_last_block(good: bytes, frame: bytes | None) -> bytes:
    """A compressed file with other bytes for the last block of kind 0, filled up with zeros, and right checksums."""
    n_text, n_kinds, n_runs = struct.unpack_from("<3I", good, 32)
    assert n_runs == 1
    header = struct.unpack_from("<Q", good, 24)[0]
    kind = -(-(64 + n_text) // 8) * 8
    n_blocks = [struct.unpack_from("<Q", good, kind + 40 * k + 16)[0] for k in range(n_kinds)]
    first = header - 8 - 16 * sum(n_blocks)
    sizes = [struct.unpack_from("<Q", good, first + 16 * i)[0] for i in range(n_blocks[0])]
    row, n = first + 16 * (n_blocks[0] - 1), sizes[-1]
    offset = struct.unpack_from("<Q", good, kind + 24)[0] + sum(sizes[:-1])
    assert n < struct.unpack_from("<Q", good, kind + 8)[0]
    if frame is None:  # the right size, and something behind it
        frame = zstandard.compress(bytes(struct.unpack_from("<Q", good, kind + 8)[0]), 1)
    data = bytearray(good)
    data[offset : offset + n] = frame[:n].ljust(n, b"\0")
    struct.pack_into("<Q", data, row + 8, xxhash.xxh3_64_intdigest(bytes(data[offset : offset + n])))
    return resealed(data)


def test_a_compressed_block_that_lies(opened: Case, tmp_path: Path) -> None:
    """Frames of another size, with more behind them, and no frames."""
    path = tmp_path / "a.state"
    save_state(opened.ctx, path, opened.seq, compress=True)
    good = path.read_bytes()
    big, small = zstandard.compress(bytes(1 << 20), 1), zstandard.compress(b"x", 1)
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(b"x")
    for frame in (big, small, unknown, b"", None):
        path.write_bytes(with_last_block(good, frame))
        replace(opened, path=path).refused(e.StateDamagedError)
    opened.goes_on()


def test_a_compressed_block_that_lies_in_a_full_pool(folder: Path) -> None:
    """What the sequence holds would have to go first: it is found out before."""
    model = load_model(make_model(folder / "full.gguf", arch="llama", **SMALL))
    with Context(model, ContextParams(n_ctx=96, n_threads=1)) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:90])])
        save_state(ctx, folder / "full", seq, compress=True)
        (folder / "full").write_bytes(with_last_block((folder / "full").read_bytes(), b""))
        with pytest.raises(e.StateDamagedError):
            load_state(ctx, folder / "full", seq)
        assert seq.tokens.tolist() == IDS[:90]
        assert counted(ctx)


def test_json_of_the_file(case: Case) -> None:
    """The description is what a person can read."""
    data = case.path.read_bytes()
    n = struct.unpack_from("<I", data, 32)[0]
    said = json.loads(data[64 : 64 + n])
    assert said["metadata"] == {"a": "b"}
    assert said["kv"]["type_k"] == "q8_0"
