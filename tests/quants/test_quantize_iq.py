"""What the quantizers of the IQ types are made of, and many more rows for libgguf to agree with."""

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.errors import UsageError
from llmkit.files.ggml_types import TYPE_IDS
from llmkit.kernels.jit import entry
from llmkit.quants import iq_grids
from llmkit.quants.quantize.iq4 import nearest_level
from llmkit.quants.quantize.iq_neighbours import neighbours
from llmkit.simd.lanes import vstore_i32
from llmkit.simd.ops import vload
from tests.kernels.harness import Floats, address, aligned
from tests.quants.quantize_cases import ours, theirs
from tests.reference.iq import levels_of_grid, nearest_iq4_level, neighbours_of

TYPES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")
# codebook, columns, levels, distances that count as near
TABLES = [
    ("IQ1", 8, 3, 3),
    ("IQ2_XXS", 8, 3, 2),
    ("IQ2_XS", 8, 3, 2),
    ("IQ2_S", 8, 3, 1),
    ("IQ3_XXS", 4, 8, 2),
    ("IQ3_S", 4, 8, 3),
]


@pytest.mark.parametrize(("name", "n_cols", "n_levels", "n_distances"), TABLES)
def test_neighbours_and_their_order(name: str, n_cols: int, n_levels: int, n_distances: int) -> None:
    grid = getattr(iq_grids, name)
    table, grid_levels = neighbours(grid, n_cols, n_levels, n_distances), levels_of_grid(grid, n_cols)
    lots = table[-(-(n_levels**n_cols) // 16) * 16 :].reshape(-1, 16)
    entries = grid.astype(np.int64) | np.arange(len(grid)) << 16
    assert lots.ctypes.data % 64 == 0
    for combination in np.random.default_rng(0).integers(0, n_levels**n_cols, 150).tolist():
        levels = [combination // n_levels**column % n_levels for column in range(n_cols)]
        near, found = neighbours_of(levels, grid_levels, n_distances), int(table[combination])
        if not near:
            assert grid_levels[found >> 16].tolist() == levels
            assert found == entries[found >> 16]
            continue
        first, n = divmod(-found, 32)
        listed = lots[first : first + n].ravel()
        assert listed[: len(near)].tolist() == entries[near].tolist()
        assert len(near) > 16 * (n - 1)
        assert set(listed[len(near) :].tolist()) <= {entries[near[0]]}


@entry(numba.void(numba.int64, numba.int64, numba.int64))
def _nearest_levels(x, out, n):
    for i in range(0, 4 * n, 64):
        vstore_i32(out + i, nearest_level(vload(x + i)))


def test_nearest_level_of_iq4() -> None:
    """Next to each point halfway between two values, where one rounding error would show."""
    halfway = np.arange(-140.0, 140.0, 0.5, dtype=np.float32)
    up, down = np.nextafter(halfway, np.float32(1e9)), np.nextafter(halfway, np.float32(-1e9))
    random = np.random.default_rng(3).normal(0, 60, 4096).astype(np.float32)
    x = aligned(np.concatenate([halfway, up, down, random, np.float32([1e30, -1e30, np.inf, -np.inf] * 4)]))
    assert x.size % 16 == 0
    out = aligned(np.zeros(x.size, np.int32))
    _nearest_levels(address(x), address(out), x.size)
    assert out.tolist() == [nearest_iq4_level(value) for value in x]


def awkward_rows(rng: np.random.Generator) -> Floats:
    """Rows of one to three blocks: few values, many zeros, parts of very different size, sizes near the smallest.

    Not above 1e8: where weighted squares overflow, llama.cpp's search for IQ1 reads memory that is not its own.
    """
    n_cols = 256 * int(rng.integers(1, 4))
    shape = (12, n_cols)
    x = [
        rng.standard_normal(shape),
        rng.standard_t(1.5, shape),
        rng.choice([0.0, 1.0, -1.0, 2.0, -0.5], shape),
        np.round(rng.standard_normal(shape) * 4) / 4,
        np.sign(rng.standard_normal(shape)) * np.exp(rng.uniform(-6, 0, shape)),
    ][rng.integers(5)]
    x = x * (rng.random(shape) < rng.choice([1.0, 0.5, 0.1]))
    scale = 10.0 ** rng.uniform(*[(-3, 1), (-18, -5), (-45, 8)][rng.integers(3)], (12, 1))
    parts = 10.0 ** (rng.uniform(-12, 2, (12, n_cols // 16)) * rng.integers(0, 2))
    return np.clip(x * scale * np.repeat(parts, 16, axis=1), -1e8, 1e8).astype(np.float32)


def awkward_importance(rng: np.random.Generator, n_cols: int) -> NDArray[np.float32]:
    weights = rng.exponential(1.0, n_cols)
    wide = 10.0 ** rng.uniform(-30, 10, n_cols)
    return [weights, weights**8, weights * (rng.random(n_cols) < 0.5), wide][rng.integers(4)].astype(np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_bytes_of_libgguf_for_awkward_rows(name: str) -> None:
    rng, type_id = np.random.default_rng(7), TYPE_IDS[name]
    for i in range(40):
        rows = awkward_rows(rng)
        importance = awkward_importance(rng, rows.shape[1])
        weighted = i % 2 == 0 or name in ("IQ1_S", "IQ2_XXS", "IQ2_XS")
        ours_, theirs_ = (f(type_id, rows, importance if weighted else None) for f in (ours, theirs))
        assert np.array_equal(ours_, theirs_), (i, np.argwhere(ours_ != theirs_)[:4])


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS"])
def test_refuses_to_go_without_importance(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} needs an importance matrix"):
        ours(TYPE_IDS[name], np.ones((1, 256), np.float32), None)


@pytest.mark.parametrize("name", TYPES)
def test_rows_that_are_no_numbers_give_some_bytes(name: str) -> None:
    """Nobody asks for them (kernels/finite.py comes first), but no address may depend on them."""
    rows = np.full((3, 256), np.nan, np.float32)
    rows[1, ::3], rows[2] = np.inf, np.where(np.arange(256) % 5, 1, np.nan)
    assert ours(TYPE_IDS[name], rows, np.ones(256, np.float32)).shape[0] == 3
