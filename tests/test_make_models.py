"""The tiny models are what they say: deterministic, complete, and with weights of a sane size in every type."""

from pathlib import Path

import numpy as np
import pytest

from llmkit.files.ggml_types import TYPE_IDS
from llmkit.files.gguf_reader import open_gguf
from tests.make_archs import FILES
from tests.make_blocks import TYPES, random_tensor
from tests.make_models import TinyModel, make_model
from tests.make_vocab import bpe_vocab, byte_characters
from tests.paths import TINY, need_shared
from tests.reference import dequantize_rows


def test_the_same_model_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    models = [make_model(tmp_path / f"{i}.gguf", seed=seed).read_bytes() for i, seed in enumerate((1, 1, 2))]
    assert models[0] == models[1]
    assert models[0] != models[2]


@need_shared
@pytest.mark.parametrize("arch", [arch for arch in FILES if list(TINY.glob(f"{arch}-*.gguf"))])
def test_keys_and_tensors_are_ones_that_the_shared_tiny_models_have(tmp_path: Path, arch: str) -> None:
    ours = open_gguf(make_model(tmp_path / "m.gguf", arch=arch, window_pattern=(1, 0)))
    theirs = open_gguf(sorted(TINY.glob(f"{arch}-*.gguf"))[0])
    assert set(ours.metadata) <= set(theirs.metadata)
    assert all(ours.kind(key) == theirs.kind(key) for key in ours.metadata)
    split = {"attn_qkv", "attn_q", "attn_k", "attn_v", "rope_factors_long", "rope_factors_short"}
    assert {n for n in ours.tensors if n.split(".")[-2] not in split} <= set(theirs.tensors)
    lacking = {name for name in theirs.tensors if "scale" not in name and "cls" not in name} - set(ours.tensors)
    lacking = {name for name in lacking if name.split(".")[-2] not in split}
    assert all(n.endswith(".bias") or "rope_f" in n or ".attn_norm_2" in n or n == "output.weight" for n in lacking)


@pytest.mark.parametrize("type", TYPES)
def test_random_weights_have_the_spread_asked_for(type: str) -> None:
    raw = random_tensor(np.random.default_rng(3), (512, 200), type, 0.05).reshape(200, -1)
    values = dequantize_rows(raw, TYPE_IDS[type])
    assert values.shape == (200, 512)
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.002
    assert 0.045 < values.std() < 0.055


def test_types_can_be_given_by_name(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", n_layer=1, type="Q8_0", types={"attn_v": "Q4_1", "ffn": "F16"}, tied=True)
    names = {name: info.type_name for name, info in open_gguf(path).tensors.items()}
    assert names["blk.0.attn_v.weight"] == "Q4_1"
    assert names["blk.0.ffn_up.weight"] == "F16"
    assert names["blk.0.ffn_norm.weight"] == "F32"
    assert names["blk.0.attn_q.weight"] == "Q8_0"
    assert "output.weight" not in names


def test_metadata_can_be_changed_and_taken_away(tmp_path: Path) -> None:
    changes = {"llama.block_count": 0, "llama.rope.freq_base": None}
    file = open_gguf(make_model(tmp_path / "m.gguf", TinyModel(metadata=changes)))
    assert file.u32("llama.block_count") == 0
    assert "llama.rope.freq_base" not in file.metadata


def test_the_byte_characters_are_those_of_gpt2() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert (characters[ord(" ")], characters[ord("\n")], characters[ord("a")], characters[0]) == ("Ġ", "Ċ", "a", "Ā")
    vocab = bpe_vocab()
    tokens = vocab["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == len(set(tokens))
