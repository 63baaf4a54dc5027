"""Hyper-parameters that pass every check of the file format and still mean nothing: a named error, never a warning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.errors import MetadataError, TensorError
from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from tests.make_models import TinyModel, build, make_model


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.layer_norm_rms_epsilon", np.float64(1e300)),
        ("attention.layer_norm_rms_epsilon", -1e-5),
        ("attention.scale", np.float64(3.5e38)),
        ("rope.scaling.factor", np.float64(1e-300)),
        ("rope.scaling.factor", 1e-9),
        ("rope.freq_base", np.float64(1e39)),
        ("rope.freq_base", 0.0),
        ("block_count", 0),
        ("block_count", 513),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 3),
        ("context_length", 0),
        ("rope.dimension_count", 18),
        ("attention.key_length", 15),
    ],
)
def test_numbers_that_no_model_has(tmp_path: Path, key: str, value: Any) -> None:
    path = make_model(tmp_path / "m.gguf", n_layer=1, metadata={f"llama.{key}": value})
    with pytest.raises(MetadataError, match=f"(?i){key.split('.')[0]}") as caught:
        load_model(path)
    assert caught.value.hint


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scaling", [1.0, 1e-300])
@pytest.mark.parametrize("bad", [0.0, np.nan, 1e-30, -1e-30])  # llama.cpp's tiny models do have negative ones
def test_rope_factors_that_give_no_angle(tmp_path: Path, bad: float, scaling: float) -> None:
    metadata, tensors = build(TinyModel(n_layer=1, metadata={"llama.rope.scaling.factor": np.float64(scaling)}))
    factors = np.array([1, 1, bad, 1, 1, 1, 8, 8], np.float32)
    write_gguf(tmp_path / "m.gguf", metadata, [*tensors, TensorData("rope_freqs.weight", (8,), 0, factors)])
    with pytest.raises(MetadataError, match="RoPE"):
        load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "output_norm.weight"])
def test_a_vector_in_blocks(tmp_path: Path, name: str) -> None:
    metadata, tensors = build(TinyModel(n_layer=1))
    blocks = TensorData(name, (64,), 8, np.zeros(2 * 34, np.uint8))
    write_gguf(tmp_path / "m.gguf", metadata, [blocks if tensor.name == name else tensor for tensor in tensors])
    with pytest.raises(TensorError, match="block type"):
        load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "shape",
    [
        dict(n_vocab=1, n_embd=1, n_ff=1, n_head=1, n_head_kv=1, head_dim=2),
        dict(n_embd=7, n_ff=3, n_head=6, n_head_kv=1, head_dim=2, n_vocab=17),
        dict(n_embd=33, n_ff=17, n_head=5, n_head_kv=5, head_dim=66, n_vocab=31),
        dict(n_embd=50, n_ff=129, n_head=32, n_head_kv=2, head_dim=1024 // 16, n_vocab=3),
        dict(n_embd=16, n_ff=16, n_head=2, n_head_kv=1, head_dim=1024, n_vocab=5),
    ],
)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_odd_sizes_compute_the_same_in_any_way(tmp_path: Path, shape: dict[str, Any], arch: str) -> None:
    path = make_model(tmp_path / "m.gguf", arch=arch, n_layer=1, type="F16", **shape)
    model, ids = load_model(path), [i % shape["n_vocab"] for i in range(40)]
    found = []
    for n_threads, n_ubatch, cut in ((1, 64, 40), (3, 8, 39), (2, 1, 0)):
        params = ContextParams(n_ctx=64, n_ubatch=n_ubatch, n_threads=n_threads, type_k="f32", type_v="f16")
        with Context(model, params) as ctx:
            ctx.kv.pool.poison(True)
            seq = ctx.new_sequence()
            parts = [np.array(ctx.decode([Segment(seq, part, "all")])) for part in (ids[:cut], ids[cut:])]
            found.append(np.concatenate(parts))
    assert np.isfinite(found[0]).all()
    assert all((other.view(np.uint32) == found[0].view(np.uint32)).all() for other in found[1:])


def test_the_file_may_be_closed_while_its_model_runs(tmp_path: Path) -> None:
    """The mapping stays while kernels read it: this ended the process."""
    model = load_model(make_model(tmp_path / "m.gguf", n_layer=1))
    with Context(model, ContextParams(n_ctx=64, n_threads=1)) as ctx:
        want = np.array(ctx.decode([Segment(ctx.new_sequence(), [1, 2], "all")]))
        model.gguf.close()
        assert (ctx.decode([Segment(ctx.new_sequence(), [1, 2], "all")]) == want).all()
