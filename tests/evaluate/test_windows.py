"""How a text is cut: which tokens are context, which are scored, and what is refused."""

import numpy as np
import pytest

from llmkit.errors import UsageError
from llmkit.evaluate.errors import EmptyTextError, ShortTextError, TextEncodingError
from llmkit.evaluate.text import decode_text, encode_text
from llmkit.evaluate.windows import check_sizes, chunks, strided, strided_length

TOKENS = np.arange(100, 200, dtype=np.int32)


def test_chunks_stand_side_by_side_and_their_second_half_is_scored() -> None:
    windows = chunks(TOKENS, 8, -1, None)
    assert (windows.n, windows.n_scored) == (12, 3)
    assert windows.context(1) == [108, 109, 110, 111]
    assert windows.scored(1) == [112, 113, 114]
    assert windows.targets(3, 3).tolist() == [113, 114, 115]


def test_targets_run_across_windows() -> None:
    assert chunks(TOKENS, 8, -1, None).targets(2, 3).tolist() == [107, 113, 114]


def test_an_odd_size_scores_as_llama_cpp_does() -> None:
    """n_ctx - 1 - n_ctx / 2 tokens."""
    windows = chunks(TOKENS, 9, -1, None)
    assert (windows.first, windows.n_scored) == (4, 4)


def test_the_begin_token_takes_the_first_ones_place() -> None:
    assert chunks(TOKENS, 8, -1, 7).context(2) == [7, 117, 118, 119]
    assert chunks(TOKENS, 8, -1, 7).targets(6, 1).tolist() == [121]


@pytest.mark.parametrize(("wanted", "n"), [(-1, 12), (3, 3), (99, 12)])
def test_chunks_wanted(wanted: int, n: int) -> None:
    assert chunks(TOKENS, 8, wanted, None).n == n


def test_strided_windows_score_their_last_tokens() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    windows = strided(tokens, 32, 20, -1, None)
    assert windows.length == 256
    assert windows.n == 38  # the starts 0, 20 .. that leave a whole window
    assert windows.targets(20, 20).tolist() == list(range(256, 276))
    assert windows.context(1) + windows.scored(1) == list(range(20, 275))


@pytest.mark.parametrize(
    ("n_ctx", "stride", "length"), [(128, 64, 256), (128, 100, 256), (512, 256, 768), (512, 0, 512)]
)
def test_a_strided_window_is_as_long_as_llama_cpps(n_ctx: int, stride: int, length: int) -> None:
    assert strided_length(n_ctx, stride) == length


@pytest.mark.parametrize("n_ctx", [51, 512])
def test_a_text_too_short_is_told_with_both_numbers(n_ctx: int) -> None:
    with pytest.raises(ShortTextError, match=rf"100 tokens.*{2 * n_ctx}"):
        chunks(TOKENS, n_ctx, -1, None)


def test_two_whole_chunks_are_enough() -> None:
    assert chunks(TOKENS, 50, -1, None).n == 2


def test_a_text_too_short_for_a_stride() -> None:
    with pytest.raises(ShortTextError, match="512"):
        strided(TOKENS, 32, 20, -1, None)


@pytest.mark.parametrize(
    ("n_ctx", "n_chunks", "stride"), [(3, -1, 0), (8, 0, 0), (8, -2, 0), (64, -1, 5000), (8, -1, -1)]
)
def test_impossible_sizes(n_ctx: int, n_chunks: int, stride: int) -> None:
    with pytest.raises(UsageError):
        check_sizes(n_ctx, n_chunks, stride)


@pytest.mark.parametrize("raw", [b"", b"\n"])
def test_an_empty_text(raw: bytes) -> None:
    with pytest.raises(EmptyTextError, match=r"f\.txt is empty"):
        decode_text(raw, "f.txt")


def test_a_text_that_is_no_utf_8_is_told_where() -> None:
    with pytest.raises(TextEncodingError, match="byte 3 is 0xff"):
        decode_text(b"abc\xff", "f.txt")


def test_one_newline_at_the_end_does_not_count() -> None:
    assert decode_text(b"a\n\n", "") == "a\n"


def test_special_tokens_in_the_text_are_plain_text() -> None:
    class Encoder:
        def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
            return [int(add_special), int(parse_special)]

    assert encode_text(Encoder(), "</s>").tolist() == [1, 0]
