"""`--override-kv`: the notation, what may not be overridden, and that a model is read as if its file said so."""

from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import MetadataError, UsageError
from llmkit.files.gguf_cursor import Cursor
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.gguf_values import read_entry
from llmkit.files.overrides import lay_over, parse_overrides
from llmkit.models.model import load_model
from tests.make_models import make_model


def values(*texts: str) -> dict[str, object]:
    return {key: entry.value for key, entry in parse_overrides(texts).items()}


def test_the_four_types() -> None:
    assert values("a.b=int:-7", "c=float:2.5e-1", "d=bool:true", "e=str:x y") == {
        "a.b": -7,
        "c": 0.25,
        "d": True,
        "e": "x y",
    }


def test_several_in_one_text_and_the_last_of_a_key_counts() -> None:
    assert values("a=int:1,b=bool:false,a=int:2") == {"a": 2, "b": False}


def test_a_text_may_hold_commas_colons_and_equal_signs() -> None:
    assert values("a=str:x, y=z: 1,b=int:2") == {"a": "x, y=z: 1", "b": 2}
    assert values("a=str:") == {"a": ""}


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=1", "=int:1", "a=int", "a b=int:1", "a=int:", "a=int:x", "a=int:1.5", "a=int:9223372036854775808",
     "a=int:1_0", "a=float:nan", "a=float:1e999", "a=float:", "a=bool:1", "a=bool:True", "a=u32:1", "a=int:1,b",
     "a=int:1,b=foo:2"],
)  # fmt: skip
def test_what_is_not_of_the_form_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_overrides([text])
    assert "--override-kv" in caught.value.message
    assert "=int:4096" in caught.value.hint


def test_the_bytes_are_those_of_a_file() -> None:
    """A file that is written again holds what was laid over it."""
    for text, type in (("k=int:-7", 11), ("k=float:0.1", 12), ("k=bool:true", 7), ("k=str:été", 8)):
        entry = parse_overrides([text])["k"]
        data = type.to_bytes(4, "little") + bytes(entry.raw)
        again = read_entry(Cursor(memoryview(data), "m"), np.frombuffer(data, np.uint8), "k")
        assert (again.type, again.value) == (entry.type, entry.value)


def test_laid_over_a_file(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", tokenizer="bpe")
    with open_gguf(path) as file:
        assert file.u32("llama.context_length") == 256
        new = lay_over(file, parse_overrides(["llama.context_length=int:128,x.y=str:new"]))
        assert new == ["x.y"]
        assert file.u32("llama.context_length") == file.metadata["llama.context_length"] == 128
        assert file.str("x.y") == "new"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("llama.context_length=float:1", "UINT32"),
        ("llama.context_length=str:128", "UINT32"),
        ("general.architecture=int:1", "STRING"),
        ("tokenizer.ggml.tokens=str:a", "ARRAY[STRING]"),
        ("general.alignment=int:64", "laid out"),
        ("split.count=int:2", "laid out"),
    ],
)
def test_another_type_and_the_layout_are_refused(tmp_path: Path, text: str, named: str) -> None:
    path = make_model(tmp_path / "m.gguf", tokenizer="bpe")
    with open_gguf(path) as file, pytest.raises(UsageError) as caught:
        lay_over(file, parse_overrides([text]))
    assert named in caught.value.message


def test_a_model_is_read_as_if_its_file_said_so(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf")
    model = load_model(path, overrides=parse_overrides(["llama.context_length=int:64,x.y=int:1"]))
    assert model.config.n_ctx_train == 64
    assert model.added_keys == ["x.y"]
    with pytest.raises(MetadataError, match="block_count"):
        load_model(path, overrides=parse_overrides(["llama.block_count=int:0"]))


def test_another_value_is_another_fingerprint(tmp_path: Path) -> None:
    """State that was computed with other metadata must not be taken for this model's."""
    path = make_model(tmp_path / "m.gguf")
    texts = [
        (),
        ("llama.rope.freq_base=float:10000",),
        ("llama.rope.freq_base=float:20000",),
        ("x=int:1",),
        ("x=str:1",),
    ]
    prints = [load_model(path, overrides=parse_overrides(t)).fingerprint() for t in texts]
    assert len(set(prints)) == len(prints)
    plain = load_model(path)
    assert plain.fingerprint() == plain.file_fingerprint() == prints[0]
    assert all(len(p) == 64 for p in prints)
