"""Special tokens in a text: found in llama.cpp's order, with the blanks that some swallow, and in linear time."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.tokenizer import Tokenizer
from llmkit.tokenizer.special_split import SpecialSplitter
from llmkit.tokenizer.special_tokens import SpecialTokens
from llmkit.tokenizer.vocab import Attr, Vocab
from tests.make_vocab import CONTROL, NORMAL, UNKNOWN
from tests.tokenizer import reference
from tests.tokenizer.vocabs import USER_DEFINED, bpe_metadata, loaded, spm_metadata

IDS = st.sets(st.integers(0, 7), max_size=8)


def splitter(tokens: list[str], lstrip: set[int] = frozenset(), rstrip: set[int] = frozenset()) -> SpecialSplitter:  # type: ignore[assignment]
    """A splitter that finds `tokens`, all defined by a user; nothing else of a vocabulary matters to it."""
    vocab = Vocab(
        place="test", model="gpt2", pre=None, tokens=tokens, ids={token: i for i, token in enumerate(tokens)},
        attrs=np.full(len(tokens), Attr.USER_DEFINED, dtype=np.uint8), scores=None, special_ids={}, add_bos=False,
        add_eos=False, add_space_prefix=False, general_name="", arch="",
    )  # fmt: skip
    found = tuple(range(len(tokens)))
    return SpecialSplitter(vocab, SpecialTokens(None, None, frozenset(), found, frozenset(lstrip), frozenset(rstrip)))


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.text(alphabet="ab<é ", min_size=1, max_size=8), min_size=1, max_size=8, unique=True),
    st.lists(st.text(alphabet="ab<é \n\u3000", max_size=30), max_size=6),
    IDS,
    IDS,
)
def test_same_parts_as_llama_cpp(tokens: list[str], texts: list[str], lstrip: set[int], rstrip: set[int]) -> None:
    split = splitter(tokens, lstrip, rstrip)
    # A text made of the tokens themselves overlaps them in every way.
    for text in [*texts, "".join(tokens), " ".join(tokens), "".join(token[1:] + token for token in tokens)]:
        ranked = [(token, id) for id, token in enumerate(tokens)]
        expected = reference.split_special(text, ranked, sorted(lstrip), sorted(rstrip))
        assert split.split(text, parse_special=True) == expected, text


def test_the_longest_token_goes_first_over_the_whole_text() -> None:
    """Not the leftmost, as a regular expression would have it."""
    assert splitter(["abc", "cdefg"]).split("abcdefg", True) == ["ab", 1]


def test_length_is_counted_in_bytes() -> None:
    assert splitter(["ééé", "éabcd"]).split("éééabcd", True) == [0, "abcd"]
    assert splitter(["éé", "éabcd"]).split("ééabcd", True) == ["é", 1]


def test_blanks_are_swallowed_as_c_knows_them() -> None:
    split = splitter(["<m>"], lstrip={0}, rstrip={0}).split
    assert split("a \t\n\v\f\r<m> \t\n\v\f\rb", True) == ["a", 0, "b"]
    assert split("a\u3000<m>\u00a0b", True) == ["a\u3000", 0, "\u00a0b"]


@pytest.fixture(scope="module")
def three_kinds() -> Tokenizer:
    """`<c>` is a control token, `<d>` one that a user defined, `<k>` the unknown token."""
    metadata = bpe_metadata(more=["<c>", "<d>", "<k>"], unknown_token_id=258)
    types = [NORMAL] * 256 + [CONTROL, USER_DEFINED, UNKNOWN]
    return loaded({**metadata, "tokenizer.ggml.token_type": np.array(types, dtype=np.int32)})


def test_control_and_unknown_tokens_only_when_asked_for(three_kinds: Tokenizer) -> None:
    assert three_kinds.encode("<c><d><k>", parse_special=True) == [256, 257, 258]
    plain = three_kinds.encode("<c><d><k>", parse_special=False)
    assert 257 in plain
    assert not {256, 258} & set(plain)
    assert three_kinds.decode(plain) == "<c><d><k>"


def test_a_text_from_outside_cannot_spell_a_control_token() -> None:
    """SentencePiece never joins characters to a control token; llama.cpp would, as `<`, `/s>` and `</s>` are tokens."""
    tokenizer = loaded(spm_metadata(["▁", "<", "/", "s", ">", "/s", "/s>", "<0", "<0x", "<0x0", "x", "0", "A", "A>"]))
    assert 2 in tokenizer.encode("</s>", parse_special=True)
    assert 2 not in tokenizer.encode("</s>", parse_special=False)
    assert tokenizer.decode(tokenizer.encode("</s><0x0A>", parse_special=False)) == "</s><0x0A>"


@pytest.mark.parametrize("text", ["\n", " ", "<unused", "<unused1", "<", "Z"])
def test_time_is_linear_in_the_text(text: str) -> None:
    """With a vocabulary like gemma's: thousands of tokens, and runs of every length up to 31."""
    tokens = [f"<unused{i}>" for i in range(6000)] + ["\n" * n for n in range(1, 32)] + [" " * n for n in range(2, 32)]
    split = splitter(tokens)
    times = []
    for n in (32_768, 131_072):
        long = (text * n)[:n]
        start = time.process_time()
        parts = split.split(long, True)
        times.append(time.process_time() - start)
        assert "".join(part if isinstance(part, str) else tokens[part] for part in parts) == long
    # Four times the text: four times as long if linear, sixteen times if quadratic.
    assert times[1] < 9 * times[0] + 0.1
