"""A state file read by docs/state-format.md alone: the reader here imports nothing of llmkit."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from tests import engine_runs as runs
from tests.make_models import make_model

runs.need_engine()

IDS = runs.random_ids(100, 131, seed=8)
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
Array = np.ndarray


# -- the reader ---------------------------------------------------------------------------------------------------


def parse(data: bytes) -> dict[str, Any]:
    """The tables of a file, whose checksums are right."""
    magic, version, flags, total, n_header, n_text, n_kinds, n_runs, n_sequences, _n_parts, n_logits, zero = (
        struct.unpack_from("<8sIIQQIIIIIIQ", data)
    )
    assert magic == bytes.fromhex("894c4c4d530d0a1a")
    assert (version, total, zero) == (1, len(data), 0)
    assert struct.unpack_from("<Q", data, n_header - 8)[0] == xxhash.xxh3_64_intdigest(data[: n_header - 8])
    said = json.loads(data[64 : 64 + n_text])
    at = 64 + n_text + -n_text % 8
    kinds = [struct.unpack_from("<IIQQQQ", data, at + 40 * i) for i in range(n_kinds)]
    at += 40 * n_kinds
    sizes = struct.unpack_from(f"<{n_runs}Q", data, at)
    at += 8 * n_runs
    columns = []
    for size in sizes:
        rows = [struct.unpack_from(f"<{size}I", data, at + 4 * size * row) for row in range(3 + n_kinds)]
        columns.append(rows)
        at += 4 * size * (3 + n_kinds)
    at += -at % 8
    sequences = []
    for _ in range(n_sequences):
        seq_id, has_logits, parts, nothing, n_tokens, checksum, n_exact = struct.unpack_from("<IIIIQQQ", data, at)
        gone = struct.unpack_from(f"<{n_kinds}Q", data, at + 40)
        assert nothing == 0
        assert n_exact == n_tokens
        sequences.append({"id": seq_id, "logits": has_logits, "n_parts": parts, "n": n_tokens, "gone": gone,
                          "checksum": checksum, "rows": [[] for _ in range(3 + n_kinds)]})  # fmt: skip
        at += 40 + 8 * n_kinds
    for seq in sequences:
        for _ in range(seq["n_parts"]):
            run, start, stop, nothing = struct.unpack_from("<IIII", data, at)
            assert nothing == 0
            at += 16
            for row, values in zip(seq["rows"], columns[run], strict=True):
                row += values[start:stop]
        assert len(seq["rows"][0]) == seq["n"]
    blocks = []
    for _window, _layers, size, n_blocks, offset, _stored in kinds:
        assert offset % 4096 == 0
        found = []
        for _ in range(n_blocks):
            n, checksum = struct.unpack_from("<QQ", data, at)
            at += 16
            block = data[offset : offset + n]
            assert xxhash.xxh3_64_intdigest(block) == checksum
            offset += n
            found.append(zstandard.decompress(block) if flags & 1 and n < size else block)
            assert len(found[-1]) == size
        blocks.append(found)
        end = offset
    assert at + 8 == n_header
    for seq in sequences:
        if seq["logits"]:
            begin = end + -end % 4096
            end = begin + 4 * n_logits
            assert xxhash.xxh3_64_intdigest(data[begin:end]) == seq["checksum"]
            seq["row"] = struct.unpack_from(f"<{n_logits}f", data, begin)
    assert end == total
    return {"said": said, "kinds": kinds, "sequences": sequences, "blocks": blocks}


def cells_of_head(name: str, data: bytes, n: int, *, key: bool) -> tuple[Array, int]:
    """float32 [32 cells][n], and how many bytes they took."""
    if name in ("f32", "f16", "bf16"):
        kind = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[name]
        values = np.frombuffer(data, kind, 32 * n)
        values = values.reshape(n, 32).T if key else values.reshape(32, n)
        size = 32 * n * values.itemsize
        if name == "bf16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32), size
    groups, at = [], 0
    for _ in range(n // 32):
        n_codes = 1024 if name == "q8_0" else 512
        codes = np.frombuffer(data, np.int8 if name == "q8_0" else np.uint8, n_codes, at)
        at += n_codes
        codes = codes.reshape(-1, 32).T if key else codes.reshape(32, -1)
        codes = codes.astype(np.int64)
        if name != "q8_0":
            codes = np.concatenate([codes & 15, codes >> 4], axis=1)
        if name[:2] == "q5":
            fifth = np.frombuffer(data, "<u4", 32, at).astype(np.int64)
            codes += (fifth[:, None] >> np.arange(32) & 1) << 4
            at += 128
        d = np.frombuffer(data, "<f2", 32, at).astype(np.float32)[:, None]
        at += 64
        if name in ("q4_1", "q5_1"):
            groups.append(d * codes + np.frombuffer(data, "<f2", 32, at).astype(np.float32)[:, None])
            at += 64
        elif name == "iq4_nl":
            groups.append(d * np.array(IQ4_NL, np.float32)[codes])
        else:
            groups.append(d * (codes - {"q8_0": 0, "q4_0": 8, "q5_0": 16}[name]))
    return np.concatenate(groups, axis=1), at


def transformed(x: Array, n_rot: int) -> Array:
    """Walsh-Hadamard over each n_rot of the last axis."""
    y = x.reshape(*x.shape[:-1], -1, n_rot).astype(np.float64)
    i, step = np.arange(n_rot), 1
    while step < n_rot:
        other = y[..., i ^ step]
        y = np.where(i & step, other - y, y + other)
        step *= 2
    return (y / np.sqrt(n_rot)).reshape(x.shape)


def keys_and_values(file: dict[str, Any], seq: dict[str, Any]) -> dict[int, tuple[Array, Array]]:
    """By layer of the model: K and V, [tokens][heads][values]; NaN for tokens without cells."""
    said, found = file["said"], {}
    n_head, n_k = said["kv"]["n_head_kv"], said["kv"]["head_dim"]
    n_v = n_k + -n_k % 16
    for k, layers in enumerate(said["memory"]["layers"]):
        for place, layer in enumerate(layers):
            both = [np.full((seq["n"], n_head, n), np.nan) for n in (n_k, n_v)]
            for i in range(seq["gone"][k], seq["n"]):
                block, cell = divmod(seq["rows"][3 + k][i], 32)
                data, size = file["blocks"][k][block], len(file["blocks"][k][block]) // len(layers)
                at = size * place
                for out, name, n, key in zip(both, (said["kv"]["type_k"], said["kv"]["type_v"]), (n_k, n_v),
                                             (True, False), strict=True):  # fmt: skip
                    for head in range(n_head):
                        values, n_bytes = cells_of_head(name, data[at:], n, key=key)
                        out[i, head] = values[cell]
                        at += n_bytes
            rotations = said["kv"]["n_rot_k"], said["kv"]["n_rot_v"]
            k_and_v = [transformed(x, n) if n else x for x, n in zip(both, rotations, strict=True)]
            found[layer] = (k_and_v[0], k_and_v[1])
    return found


# -- what it finds ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"n_embd": 128, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "n_vocab": 131, "n_ctx_train": 1024}
    folder = tmp_path_factory.mktemp("format")
    return make_model(folder / "m.gguf", arch="gemma3", window=40, window_pattern=(0, 1), **sizes)


def saved(model: Path, path: Path, kv: str, *, compress: bool = False) -> tuple[dict[str, Any], Array]:
    from llmkit.engine.state.save_load import save_state

    with runs.context(model, kv=kv, n_ctx=512, seed=1) as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(3), IDS[:70])], "none")
        memory.seq_cp(3, 1)
        row = runs.feed(ctx, [(memory.sequence(3), IDS[70:90])])[-1]
        sequences = {i: memory.sequence(i) for i in (3, 1)}
        save_state(ctx, path, sequences, metadata={"title": "été"}, logits={3: row}, compress=compress)
        return parse(path.read_bytes()), row


@pytest.fixture(scope="module")
def exact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Array, Array]]:
    """K and V of sequence 3 as float32."""
    file, _ = saved(model, tmp_path_factory.mktemp("exact") / "a", "f32")
    return keys_and_values(file, file["sequences"][0])


@pytest.mark.parametrize("compress", [False, True])
def test_the_tables(model: Path, tmp_path: Path, compress: bool) -> None:
    file, row = saved(model, tmp_path / "a", "f16", compress=compress)
    first, second = file["sequences"]
    assert [seq["id"] for seq in (first, second)] == [3, 1]
    assert first["rows"][0] == IDS[:90]
    assert second["rows"][0] == IDS[:70]
    assert first["rows"][1] == first["rows"][2] == list(range(90))
    assert first["row"] == tuple(row.tolist())
    assert [kind[0] for kind in file["kinds"]] == [0, 40]
    assert file["kinds"][0][3] == 4  # 2 full ones shared, and a third for each
    assert file["said"]["memory"] == {"layers": [[0], [1]], "n_ctx": 512, "swa_full": False, "windows": [0, 40]}
    assert file["said"]["metadata"] == {"title": "été"}
    assert (tmp_path / "a").stat().st_size < (60_000 if compress else 90_000)


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "q8_0/q5_1"])
def test_keys_and_values(model: Path, tmp_path: Path, kv: str, exact: dict[int, tuple[Array, Array]]) -> None:
    """The first layer's are the exact ones, rounded to the type; both layers are found where the page says."""
    file, _ = saved(model, tmp_path / "a", kv)
    got = keys_and_values(file, file["sequences"][0])
    assert sorted(got) == [0, 1]
    steps = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3, "q8_0": 0.012, "q5": 0.12, "q4": 0.25, "iq4": 0.3}
    for name, x, y in zip((kv.split("/") * 2)[:2], got[0], exact[0], strict=True):
        error = np.abs(x - y).max() / np.abs(y).max()
        assert error < next(steps[part] for part in (name, name.split("_")[0]) if part in steps), name
    gone = file["sequences"][0]["gone"]
    assert gone[0] == 0
    assert np.isnan(got[1][0][: gone[1]]).all()
    assert np.corrcoef(got[1][0][gone[1] :].ravel(), exact[1][0][gone[1] :].ravel())[0, 1] > 0.97
