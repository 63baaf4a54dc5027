"""float32 rows to bytes: equal to libgguf's, for every type that is quantised here."""

import numpy as np
import pytest

from llmkit.errors import UnsupportedError, UsageError
from llmkit.files.ggml_types import TYPE_IDS
from llmkit.kernels.finite import first_not_finite
from llmkit.quants.quantize.registry import NEEDS_IMPORTANCE, TYPES, quantize_rows, quantizer
from tests.quants.quantize_cases import importance_of, ours, rows_of, theirs


@pytest.mark.parametrize("name", [name for name in TYPES if name != "Q2_0"])
def test_bytes_of_libgguf(name: str) -> None:
    type_id, n_cols = TYPE_IDS[name], 768
    different = []
    for importance_name, importance in importance_of(n_cols):
        if importance is None and name in NEEDS_IMPORTANCE:
            continue
        for rows_name, rows in rows_of(n_cols):
            if not np.array_equal(ours(type_id, rows, importance), theirs(type_id, rows, importance)):
                different.append(f"{rows_name}, importance {importance_name}")
    assert different == []


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_share_rows(n_threads: int) -> None:
    rows = np.random.default_rng(0).standard_normal((700, 256)).astype(np.float32)
    out = np.zeros((700, 272), np.uint8)
    quantize_rows(TYPE_IDS["Q8_0"], rows, None, out, n_threads)
    assert np.array_equal(out, ours(TYPE_IDS["Q8_0"], rows, None))


def test_refuses_rows_that_do_not_divide() -> None:
    with pytest.raises(UsageError, match=r"Q8_0 holds blocks of 32 columns, and rows of 33"):
        ours(TYPE_IDS["Q8_0"], np.zeros((1, 33), np.float32), None)


@pytest.mark.parametrize("type_id", [9, 15, 24, 999])
def test_refuses_types_that_cannot_be_written(type_id: int) -> None:
    with pytest.raises(UnsupportedError, match="cannot be quantised"):
        quantizer(type_id)


def test_asserts_shapes() -> None:
    convert, rows = quantizer(TYPE_IDS["Q8_0"]), np.zeros((2, 64), np.float32)
    with pytest.raises(AssertionError):
        convert(rows, None, np.zeros((2, 67), np.uint8))
    with pytest.raises(AssertionError):
        convert(rows, np.zeros(63, np.float32), np.zeros((2, 68), np.uint8))
    with pytest.raises(AssertionError):
        convert(rows[:, ::2], None, np.zeros((2, 34), np.uint8))


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("n", "place"), [(1, 0), (15, 3), (1024, 1023), (5000, 2077), (5000, 4999), (4096, 0)])
def test_finds_what_is_not_finite(n: int, place: int, value: float) -> None:
    values = np.full(n, 3.4e38, np.float32)
    assert first_not_finite(values) == -1
    values[place] = value
    assert first_not_finite(values) == place
    values[-1] = value
    assert first_not_finite(values) == place
