"""Quantizers against slow twins, against what llama-quantize wrote, and for any rows that hypothesis thinks of."""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llmkit.files.ggml_types import TYPE_IDS
from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.quants.quantize.registry import quantizer
from tests.kernels.harness import Floats
from tests.paths import DATA, TINY, need_shared
from tests.quants.quantize_cases import ours, rows_of, theirs
from tests.reference.quant import dequantize_rows
from tests.reference.quantize import ENCODERS, quantize

SMALLEST_SCALE = 1e-37  # inverses of smaller ones overflow: what C makes of them is libgguf's to say


@pytest.mark.parametrize("name", list(ENCODERS))
def test_twin(name: str) -> None:
    for rows_name, rows in rows_of(256):
        if 0 < np.abs(rows).max() < SMALLEST_SCALE or rows_name == "tiny":
            continue
        assert np.array_equal(ours(TYPE_IDS[name], rows, None), quantize(name, rows)), rows_name


def test_q2_0_of_subnormal_rows() -> None:
    """The inverse of d is infinite: every value but zero is out of int's range, which C's cast on x86 makes -1."""
    rows = np.zeros((1, 64), np.float32)
    rows[0, :3] = 1e-40, -1e-40, 1e-45
    assert ours(TYPE_IDS["Q2_0"], rows, None).tolist() == [[0] * 18]


@pytest.mark.parametrize("distance", [0, 1, 2, 11, 12, 44, 45, 88, 89])
def test_mxfp4_around_powers_of_two(distance: int) -> None:
    """The exponent is that of a logarithm in float32, which is rounded up to an integer just below a power of two."""
    powers = (2.0 ** np.arange(-120, 128)).astype(np.float32)
    rows = np.zeros((2 * len(powers), 32), np.float32)
    rows[:, 5] = np.concatenate([(powers.view(np.int32) + d).view(np.float32) for d in (distance, -distance)])
    assert np.array_equal(ours(TYPE_IDS["MXFP4"], rows, None), theirs(TYPE_IDS["MXFP4"], rows, None))


# -- what llama-quantize wrote -------------------------------------------------------------------------------------


@cache
def expected() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DATA / "quantize.json").read_text(encoding="utf-8"))
    return result


def values_of(file: GgufFile, name: str, *, as_half: bool) -> Floats:
    tensor = file.tensors[name]
    raw = np.asarray(file.tensor_bytes(name)).reshape(tensor.n_rows, tensor.row_bytes)
    rows = dequantize_rows(raw, tensor.type)
    return rows.astype(np.float16).astype(np.float32) if as_half and len(tensor.shape) > 1 else rows


def wrong_tensors(
    file: GgufFile, source: str, wanted: Callable[[str], bool], *, as_half: bool
) -> tuple[int, list[str]]:
    """How many tensors were compared, and which differ."""
    n, wrong, seen = 0, [], set()
    for tensors in expected()[source].values():
        for name, (kind, digest) in tensors.items():
            if not wanted(name) or (name, kind) in seen:
                continue
            seen.add((name, kind))
            rows = np.ascontiguousarray(values_of(file, name, as_half=as_half))
            n += 1
            if hashlib.sha256(ours(TYPE_IDS[kind], rows, None).tobytes()).hexdigest()[:16] != digest:
                wrong.append(f"{name} {kind}")
    return n, wrong


@need_shared
def test_tensors_of_the_tiny_model() -> None:
    with open_gguf(TINY / "llama-dense.gguf") as file:
        n, wrong = wrong_tensors(file, "tiny-llama-dense-f32", lambda _name: True, as_half=False)
    assert (n, wrong) == (n, [])
    assert n > 200


@need_shared
def test_tensors_of_a_real_model(real_model: Callable[[str], Path]) -> None:
    """Two matrices in the six to nine types that a file has them in."""
    with open_gguf(real_model("smollm2-135m")) as file:
        n, wrong = wrong_tensors(
            file,
            "SmolLM2-135M-Instruct-f16",
            lambda name: name in ("blk.0.attn_v.weight", "blk.3.ffn_down.weight"),
            as_half=True,
        )
    assert (n, wrong) == (n, [])
    assert n > 10


# -- any rows ------------------------------------------------------------------------------------------------------

SOME = ("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K")
numbers = st.floats(-(2.0**60), 2.0**60, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e-42])
weights = st.floats(0, 2.0**20, width=32) | st.sampled_from([0.0, 1.0])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(SOME), weighted=st.booleans())
def test_any_rows(data: st.DataObject, name: str, weighted: bool) -> None:
    n_cols = 256
    few = data.draw(arrays(np.float32, (3, 16), elements=numbers))
    spread = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows = np.ascontiguousarray(few[:, spread.integers(0, 16, n_cols)])
    importance = None
    if weighted:
        importance = data.draw(arrays(np.float32, 8, elements=weights))[spread.integers(0, 8, n_cols)]
    assert np.array_equal(ours(TYPE_IDS[name], rows, importance), theirs(TYPE_IDS[name], rows, importance))


def test_rows_of_many_shapes() -> None:
    """Batches of 16 blocks end within rows and beyond the last: any number of rows and blocks gives the same bytes."""
    rng = np.random.default_rng(5)
    for name in ("Q4_0", "Q4_1", "Q1_0", "Q4_K", "Q5_K"):
        block = quantizer(TYPE_IDS[name]).block
        for n_blocks in (1, 2, 3, 5, 17):
            rows = rng.standard_normal((7, block * n_blocks)).astype(np.float32)
            importance = rng.exponential(1.0, block * n_blocks).astype(np.float32)
            for weights_ in (None, importance):
                whole = ours(TYPE_IDS[name], rows, weights_)
                assert np.array_equal(whole, theirs(TYPE_IDS[name], rows, weights_)), (name, n_blocks)
                alone = [ours(TYPE_IDS[name], rows[i : i + 1], weights_) for i in range(7)]
                assert np.array_equal(whole, np.concatenate(alone)), (name, n_blocks)
