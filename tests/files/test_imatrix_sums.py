"""Adding importance matrices up, refusing those of other models, and the statistics of one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import ImatrixError
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from llmkit.files.imatrix_statistics import layer_statistics, tensor_statistics
from llmkit.files.imatrix_sums import add_up, read_sums

SUMS = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
COUNTS = np.array([64, 64, 128], np.float32)


def matrix(n_chunks: int = 2, **entries: ImatrixEntry) -> Imatrix:
    both = {"a": ImatrixEntry(SUMS, COUNTS), "b": ImatrixEntry(SUMS[:1], COUNTS[:1])}
    return Imatrix(both | entries, [f"{n_chunks}.txt"], n_chunks, 64)


def test_sums_counts_chunks_and_names_add_up() -> None:
    extra = ImatrixEntry(SUMS[1:2], COUNTS[:1])
    total = add_up([matrix(), matrix(5, **{"output.weight": extra})], ["x", "y"], 64)
    assert np.array_equal(total.entries["a"].sums, 2 * SUMS)
    assert np.array_equal(total.entries["a"].counts, 2 * COUNTS)
    assert np.array_equal(total.entries["output.weight"].sums, extra.sums)  # which not every file needs to have
    assert (total.n_chunks, total.datasets, total.chunk_size) == (7, ["2.txt", "5.txt"], 64)


def test_legacy_files_are_taken_back_to_rows(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.dat", replace(matrix(), is_legacy=True))
    total = add_up([read_sums(str(tmp_path / "i.dat"), 64), matrix()], ["x", "y"], 64)
    calls = np.full(3, 2.0)  # of the expert that has most
    means = SUMS / COUNTS[:, None]
    assert np.allclose(total.entries["a"].sums, means * 64 * 2 + SUMS)
    assert np.array_equal(total.entries["a"].counts, calls * 64 + COUNTS)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (matrix(c=ImatrixEntry(SUMS, COUNTS)), "x: has no 'c', which y has"),
        (Imatrix({"a": ImatrixEntry(SUMS, COUNTS)}), "y: has no 'b', which x has"),
        (matrix(a=ImatrixEntry(SUMS[:2], COUNTS[:2])), "'a' has 8 values; those before it have 12"),
        (matrix(a=ImatrixEntry(SUMS.reshape(2, 6), COUNTS[:2])), "'a' has 2 matrices; before it are 3"),
    ],
)
def test_another_model(other: Imatrix, what: str) -> None:
    with pytest.raises(ImatrixError) as error:
        add_up([matrix(), other], ["x", "y"], 64)
    assert what in error.value.message.replace("'x'", "x").replace("'y'", "y")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_values_that_no_sums_are(value: float, tmp_path: Path) -> None:
    sums, counts = SUMS.copy(), COUNTS.copy()
    sums[1, 1] = counts[0] = value
    for entry in (ImatrixEntry(sums, COUNTS), ImatrixEntry(SUMS, counts)):
        write_imatrix(tmp_path / "i.gguf", matrix(a=entry))
        with pytest.raises(ImatrixError, match="'a' holds NaN, infinity or what is below 0"):
            read_sums(str(tmp_path / "i.gguf"), 64)


def test_sums_that_float32_cannot_hold(tmp_path: Path) -> None:
    huge = matrix(a=ImatrixEntry(np.full((3, 4), 3e38, np.float32), COUNTS))
    with pytest.raises(ImatrixError, match="too large to add up"):
        add_up([huge, huge], ["x", "y"], 64)
    write_imatrix(
        tmp_path / "i.dat", Imatrix({"a": ImatrixEntry(SUMS[:1] * np.float32(1e37), COUNTS[:1])}, is_legacy=True)
    )
    with pytest.raises(ImatrixError, match="holds sums that are too large"):
        read_sums(str(tmp_path / "i.dat"), 64)


def test_statistics_by_their_definitions() -> None:
    rng = np.random.default_rng(2)
    values = {f"blk.{i}.x.weight": rng.exponential(size=(1, 200)).astype(np.float32) for i in range(2)}
    values["output.weight"] = np.full((1, 8), 3, np.float32)
    imatrix = Imatrix({name: ImatrixEntry(v * 10, np.array([10], np.float32)) for name, v in values.items()})
    first, second, output = tensor_statistics(imatrix)
    a, b = (values[f"blk.{i}.x.weight"][0].astype(np.float64) for i in range(2))
    assert (second.mean, second.deviation) == (pytest.approx(b.mean(), rel=1e-5), pytest.approx(b.std(), rel=1e-5))
    z = (b - b.mean()) / b.std()
    assert (second.skew, second.kurtosis) == (
        pytest.approx((z**3).mean(), rel=1e-4),
        pytest.approx((z**4).mean() - 3, rel=1e-4),
    )
    assert second.gain == pytest.approx(np.sqrt(b.sum() / a.sum()), rel=1e-5)
    assert second.correlation == pytest.approx(np.corrcoef(a, b)[0, 1], rel=1e-4)
    assert second.covariance == pytest.approx(np.cov(a, b, ddof=0)[0, 1], rel=1e-4)
    assert np.isnan([first.gain, first.correlation, output.gain, output.skew]).all()
    assert (output.layer, output.entropy, output.total) == (None, pytest.approx(1), 24)
    assert 0 < second.entropy < 1
    layer = layer_statistics(imatrix)[1]
    assert (layer.layer, layer.total) == (1, pytest.approx(b.sum(), rel=1e-5))
    assert layer.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-5)
