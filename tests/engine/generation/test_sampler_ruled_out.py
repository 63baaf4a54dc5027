"""What a sampler must not choose: tokens of -inf, those that a bit mask leaves out; biases beside them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.engine.generation.sampler import Sampler
from llmkit.errors import NumericsError
from llmkit.params import SamplingParams
from tests.sampling.chains import ALL_OFF, draws, survivors
from tests.sampling.rows import Words, random_row, row

CHAINS = [
    {},
    ALL_OFF,
    {"temp": 0.0},
    {"temp": 1e-9},
    ALL_OFF | {"top_p": 0.5},
    ALL_OFF | {"min_p": 0.1},
    ALL_OFF | {"typical_p": 0.5},
    ALL_OFF | {"top_n_sigma": 1.0},
    ALL_OFF | {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    ALL_OFF | {"dynatemp_range": 1.0},
    ALL_OFF | {"repeat_penalty": 1.5, "dry_multiplier": 1.0},
    ALL_OFF | {"min_keep": 100, "top_p": 0.0, "min_p": 1.0, "typical_p": 0.0},
    ALL_OFF | {"samplers": (*SamplingParams().samplers, "adaptive_p"), "adaptive_target": 0.0},
    ALL_OFF | {"samplers": ()},
    {"mirostat": 1},
    {"mirostat": 2},
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("n_vocab", [1, 300, 5000])
def test_one_possible_token_is_the_token(chain: dict[str, Any], n_vocab: int) -> None:
    """All others are -inf."""
    logits = np.full(n_vocab, -np.inf, dtype=np.float32)
    logits[n_vocab // 2] = -20
    assert set(draws(SamplingParams(seed=1, **chain), logits, 5)) == {n_vocab // 2}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_bit_mask_rules_out_what_it_leaves_out(chain: dict[str, Any]) -> None:
    n_vocab, wanted = 1000, {3, 31, 32, 64, 999}
    bits = np.zeros(1024, dtype=bool)
    bits[list(wanted)] = True
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    logits = random_row(n_vocab)
    before = logits.copy()
    sampler = Sampler(SamplingParams(seed=1, **chain))
    sampler.accept([3, 31, 3, 31])
    found = {sampler.sample(logits, words) for _ in range(60)}
    assert found <= wanted
    np.testing.assert_array_equal(logits, before)
    everything = np.full(-(-n_vocab // 32), 0xFFFFFFFF, dtype=np.uint32)
    masked, plain = Sampler(SamplingParams(seed=1, **chain)), Sampler(SamplingParams(seed=1, **chain))
    assert [masked.sample(logits, everything) for _ in range(9)] == [plain.sample(logits) for _ in range(9)]


def test_a_bit_mask_of_nothing_is_a_named_error() -> None:
    with pytest.raises(NumericsError, match="ruled out"):
        Sampler(SamplingParams()).sample(random_row(40), np.zeros(2, dtype=np.uint32))


def test_biases_are_added_and_add_up() -> None:
    logits = row(0, 1, 2)
    params = SamplingParams(**ALL_OFF, logit_bias=((0, 2.5), (0, 1.5), (1, -1.0), (2, -np.inf)))
    kept = survivors(params, logits)
    assert kept.ids.tolist() == [0, 1]
    assert (kept.logits[0] - kept.logits[1]).item() == 4.0
    assert logits.tolist() == [0, 1, 2]


def test_a_bias_works_with_a_bit_mask() -> None:
    sampler = Sampler(SamplingParams(temp=0, logit_bias=((0, 9.0), (1, 5.0))))
    assert sampler.sample(row(0, 0, 4), np.array([0b110], dtype=np.uint32)) == 1


@pytest.mark.parametrize("chain", [{"temp": 0.0}, {"temp": 1.0, "seed": 1}, {"mirostat": 2, "seed": 1}])
def test_what_a_file_suppresses_is_never_chosen(chain: dict[str, Any]) -> None:
    """llama.cpp puts a bias of -inf on tokenizer.ggml.suppress_tokens at the head of every chain."""
    vocab, logits = Words(["a", "b", "c", "d"]), row(5, 9, 4, 8)
    vocab.suppressed_ids = frozenset({1, 3})
    sampler = Sampler(SamplingParams(**chain, logit_bias=((1, 5.0),)), vocab=vocab)
    found = {sampler.sample(logits) for _ in range(50)}
    assert found <= {0, 2}
    assert 1 in {Sampler(SamplingParams(temp=0), vocab=Words(["a", "b", "c", "d"])).sample(logits)}


def test_a_grammar_bounds_the_choice_and_hears_of_it() -> None:
    class Alternating:
        """Even and odd tokens in turn; finished after three."""

        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.n_started = 0

        @property
        def finished(self) -> bool:
            return len(self.tokens) == 3

        def start_mask(self) -> None:
            self.n_started += 1

        def mask(self) -> NDArray[np.uint32]:
            return np.array([0x55555555 << len(self.tokens) % 2], dtype=np.uint32)

        def accept(self, token: int) -> None:
            self.tokens.append(token)

        def clone(self) -> "Alternating":
            raise NotImplementedError

    grammar = Alternating()
    sampler = Sampler(SamplingParams(seed=3, logit_bias=((0, -np.inf),)), grammar=grammar)
    logits = random_row(100)
    tokens = [sampler.sample(logits) for _ in range(3)]
    assert [token % 2 for token in tokens] == [0, 1, 0]
    assert 0 not in tokens
    assert max(tokens) < 32, "logits beyond the mask are of no token"
    assert (grammar.tokens, sampler.finished, grammar.n_started) == (tokens, True, 3)
