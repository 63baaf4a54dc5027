"""The twin itself, against values worked out by hand and against properties that its formulas must have."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from tests import reference as ref
from tests.reference.hparams import read_hparams

RNG = np.random.default_rng(7)


def test_rms_norm_by_hand() -> None:
    got = ref.rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(got, [[3 / 12.5**0.5, 8 / 12.5**0.5]])


def test_rope_pairs_and_angles() -> None:
    x = np.zeros((2, 1, 6))
    x[:, 0, 0] = 1.0
    cos, sin = ref.rope_tables(np.array([0, 3]), 4, 100.0, freq_scale=0.5, freq_factors=np.array([2.0, 1.0]))
    angle = 3 * 0.5 / 2.0
    norm, neox = ref.rope(x, cos, sin, neox=False), ref.rope(x, cos, sin, neox=True)
    np.testing.assert_array_equal(norm[0], x[0])
    np.testing.assert_allclose(norm[1, 0], [np.cos(angle), np.sin(angle), 0, 0, 0, 0])
    np.testing.assert_allclose(neox[1, 0], [np.cos(angle), 0, np.sin(angle), 0, 0, 0])


@pytest.mark.parametrize("neox", [False, True])
def test_rope_leaves_only_the_distance_in_a_product(neox: bool) -> None:
    q, k = RNG.normal(size=(2, 1, 3, 16))

    def product(q_pos: int, k_pos: int) -> np.ndarray:
        turned = [ref.rope(t, *ref.rope_tables(np.array([p]), 16, 1e4), neox) for t, p in ((q, q_pos), (k, k_pos))]
        return np.asarray((turned[0] * turned[1]).sum(-1))

    np.testing.assert_allclose(product(9, 4), product(105, 100))
    assert np.abs(product(9, 4) - product(9, 5)).max() > 1e-3


def test_softmax_of_a_masked_row_is_zeros() -> None:
    got = ref.softmax(np.array([[-np.inf, -np.inf], [1e4, 1e4 - np.log(3.0)]]))
    np.testing.assert_allclose(got, np.array([[0, 0], [0.75, 0.25]]))


@pytest.mark.parametrize(
    ("n_past", "n_q", "window", "tile"), [(0, 1, 0, 32), (0, 45, 0, 32), (70, 3, 0, 32), (61, 9, 20, 7)]
)
def test_attention_equals_its_tiled_form(n_past: int, n_q: int, window: int, tile: int) -> None:
    q, k, v = RNG.normal(size=(n_q, 6, 8)), RNG.normal(size=(n_past + n_q, 2, 8)), RNG.normal(size=(n_past + n_q, 2, 8))
    q_pos, k_pos = np.arange(n_past, n_past + n_q), np.arange(n_past + n_q)
    want = ref.attention(q, k, v, 0.3, q_pos, k_pos, window)
    np.testing.assert_allclose(ref.attention_tiled(q, k, v, 0.3, q_pos, k_pos, window, tile), want, atol=1e-12)


def test_attention_sees_the_past_and_no_more_than_its_window() -> None:
    k = np.zeros((6, 1, 1))
    v = np.arange(6.0).reshape(6, 1, 1)
    pos = np.arange(6)
    q = np.zeros((6, 2, 1))
    np.testing.assert_allclose(ref.attention(q, k, v, 1.0, pos, pos)[:, 1, 0], [0, 0.5, 1, 1.5, 2, 2.5])
    np.testing.assert_allclose(ref.attention(q, k, v, 1.0, pos, pos, window=2)[:, 1, 0], [0, 0.5, 1.5, 2.5, 3.5, 4.5])


def test_query_heads_share_key_heads_in_runs() -> None:
    v = np.array([10.0, 20.0]).reshape(1, 2, 1)
    got = ref.attention(np.zeros((1, 6, 1)), np.zeros((1, 2, 1)), v, 1.0, np.array([0]), np.array([0]))
    np.testing.assert_array_equal(got[0, :, 0], [10, 10, 10, 20, 20, 20])


def test_activations_of_known_values() -> None:
    x = np.array([-1000.0, -1.0, 0.0, 1.0, 1000.0])
    np.testing.assert_allclose(ref.silu(x), [0, -0.2689414213699951, 0, 0.7310585786300049, 1000], atol=1e-12)
    np.testing.assert_allclose(ref.gelu(x), [0, -0.15880800939172324, 0, 0.8411919906082768, 1000], atol=1e-12)
    np.testing.assert_allclose(ref.swiglu(x, 2 * x), 2 * x * ref.silu(x))
    np.testing.assert_allclose(ref.geglu(x, 2 * x), 2 * x * ref.gelu(x))
    np.testing.assert_allclose(ref.soft_cap(np.array([0.1, 1e9]), 30.0), [30 * np.tanh(0.1 / 30), 30])


def test_activation_blocks_by_hand() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = [127, -127, 2.5, 3.5]
    q, d = ref.quantize_activations(x, 32)
    np.testing.assert_array_equal(d, [[1, 0]])
    np.testing.assert_array_equal(q[0, :4], [127, -127, 2, 4])  # halves go to the even neighbour
    assert not q[0, 4:].any()


@pytest.mark.parametrize("block", [32, 256])
def test_rounded_activations_stay_within_half_a_step(block: int) -> None:
    x = RNG.normal(size=(5, 512)).astype(np.float32) * 10.0 ** RNG.integers(-20, 20, size=(5, 1))
    step = np.abs(x.reshape(5, -1, block)).max(-1) / 127
    error = np.abs(ref.quantize_dequantize(x.astype(np.float64), block) - x).reshape(5, -1, block)
    assert (error <= step[..., None] * (0.5 + 1e-4)).all()
    assert (error.max(-1) > 0).all()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_matmul_decodes_every_row(name: str) -> None:
    kind = GGMLQuantizationType[name]
    weights, x = RNG.normal(size=(37, 96)).astype(np.float32), RNG.normal(size=(3, 96))
    raw = weights.view(np.uint8) if name == "F32" else quantize(weights, kind).view(np.uint8)
    block_size, type_size = GGML_QUANT_SIZES[kind]
    assert raw.shape == (37, 96 // block_size * type_size)
    got = ref.matmul(x, raw, kind, rows_at_once=10)
    np.testing.assert_allclose(got, x @ ref.dequantize_rows(raw, kind).T.astype(np.float64))
    error = ref.nmse(ref.matmul(x, raw, kind, act_quant=True, rows_at_once=10), got)
    assert error == 0 if ref.act_block_size(kind) == 0 else 0 < error < 1e-4


def test_sampler_steps_by_hand() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    np.testing.assert_allclose(ref.log_softmax(np.array([1e4, -1e4, 1e4])), np.array([0, -2e4, 0]) - np.log(2))
    assert ref.greedy(np.array([1.0, 5.0, 5.0])) == 1
    assert ref.candidates(logits, 1.0)[0].tolist() == [1, 2, 3, 0]
    assert ref.candidates(logits, 1.0, k=2)[0].tolist() == [1, 2]
    assert ref.candidates(logits, 1.0, p=0.69)[0].tolist() == [1, 2]
    assert ref.candidates(logits, 1.0, p=0.71)[0].tolist() == [1, 2, 3]
    assert ref.candidates(logits, 1.0, p=0.0)[0].tolist() == [1]
    assert ref.candidates(logits, 1.0, m=0.51)[0].tolist() == [1, 2]
    assert ref.candidates(logits, 0.0)[0].tolist() == [1]
    np.testing.assert_allclose(ref.candidates(logits, 0.5, k=2)[1], [16 / 25, 9 / 25])
    # The cuts look at probabilities before the temperature, and top-p at those that top-k left.
    assert ref.candidates(logits, 100.0, k=3, p=0.75)[0].tolist() == [1, 2]


def test_pick_walks_the_distribution() -> None:
    ids, probs = np.array([5, 9]), np.array([0.25, 0.75])
    assert [ref.pick(ids, probs, u) for u in (0.0, 0.2499, 0.25, 0.99, 1.0)] == [5, 5, 9, 9, 9]


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        ({}, [64] * 5 + [0] + [64]),
        ({"gemma3.attention.sliding_window_pattern": 3}, [64, 64, 0, 64, 64, 0, 64]),
        ({"gemma3.attention.sliding_window_pattern": 1}, [0] * 7),
        ({"gemma3.attention.sliding_window_pattern": [1, 0, 0, 1, 0, 0, 0]}, [64, 0, 0, 64, 0, 0, 0]),
    ],
)
def test_gemma3_window_layers(pattern: dict[str, object], window: list[int]) -> None:
    keys: dict[str, object] = {
        "embedding_length": 64,
        "block_count": 7,
        "attention.head_count": 4,
        "attention.key_length": 32,
    }
    keys |= {"attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 64, "rope.freq_base": 1e6}
    keys |= {"rope.scaling.factor": 8.0}
    hp = read_hparams({"general.architecture": "gemma3"} | {f"gemma3.{k}": v for k, v in keys.items()} | pattern)
    assert list(hp.window) == window
    assert all(rope is not None for rope in hp.rope)
    assert [r.base == 1e4 for r in hp.rope if r] == [r.scale == 1.0 for r in hp.rope if r] == [w > 0 for w in window]
    assert hp.kq_scale == 32**-0.5
