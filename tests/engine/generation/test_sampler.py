"""The sampling chain against its slow twin (tests/reference/sampling.py), its edge rules, seeds and ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.engine.generation.sampler import Sampler, describe_chain
from llmkit.errors import NumericsError, UsageError
from llmkit.params import SamplingParams
from llmkit.sampling.candidates import Candidates, top_k_indices
from llmkit.sampling.draw import Draw, uniform
from llmkit.sampling.min_p import min_p
from llmkit.sampling.top_k import top_k
from llmkit.sampling.top_p import top_p
from tests.reference import sampling as reference
from tests.sampling.chains import ALL_OFF, draws, survivors
from tests.sampling.rows import random_row, row

# Parameters


def test_defaults_are_llama_cpps() -> None:
    assert vars(SamplingParams()) == {
        "seed": -1, "temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "ignore_eos": False,
        "repeat_last_n": 64, "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0,
        "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ("\n", ":", '"', "*"), "top_n_sigma": -1, "typical_p": 1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "dynatemp_range": 0, "dynatemp_exponent": 1,
        "adaptive_target": -1, "adaptive_decay": 0.9, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "logit_bias": (), "min_keep": 0, "samplers": (
            "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -2),
        ("seed", 2**32),
        ("top_k", -2),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", float("nan")),
        ("temp", float("nan")),
        ("temp", float("inf")),
        ("temp", float("-inf")),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_the_chain_is_described_in_its_order() -> None:
    assert describe_chain(SamplingParams()) == "top-k 40 -> top-p 0.95 -> min-p 0.05 -> temp 0.8 -> dist"
    assert describe_chain(SamplingParams(**ALL_OFF)) == "temp 1 -> dist"
    assert describe_chain(SamplingParams(temp=-1)) == "greedy"


# Greedy (case 18)


@pytest.mark.parametrize("temp", [0.0, -1.0, -1e9])
def test_no_temperature_takes_the_best(temp: float) -> None:
    logits = random_row(1000)
    assert draws(SamplingParams(temp=temp), logits, 3) == [int(logits.argmax())] * 3


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert Sampler(SamplingParams(temp=0)).sample(row(1, 5, 2, 5, 5)) == 1


def test_top_k_1_is_greedy_at_any_temperature() -> None:
    assert set(draws(SamplingParams(top_k=1, temp=100, seed=3), row(1, 5, 2, 5, 5), 50)) == {1}


@pytest.mark.parametrize("temp", [1e-3, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy_without_overflow(temp: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert set(draws(SamplingParams(**{**ALL_OFF, "temp": temp}), row(1e4, -1e4, 1e4 + 1, 0), 20)) == {2}


# The steps


@pytest.mark.parametrize("n_vocab", [1, 2, 63, 64, 65, 1000, 32_001])
@pytest.mark.parametrize("k", [1, 2, 40, 63, 1000])
def test_top_k_keeps_the_k_largest(n_vocab: int, k: int) -> None:
    logits = random_row(n_vocab)
    kept = top_k(Candidates(np.arange(n_vocab), logits), k).ids
    assert kept.tolist() == sorted(np.argsort(-logits, kind="stable")[:k].tolist())


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=400), st.integers(1, 50), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_top_k_takes_the_lowest_of_equal_ids(values: list[int], k: int, n_repeats: int) -> None:
    logits = np.array(values * n_repeats * 8, dtype=np.float32)
    k = min(k, logits.size)
    assert top_k_indices(logits, k).tolist() == sorted(np.argsort(-logits, kind="stable")[:k].tolist())


def test_top_k_counts_impossible_tokens_last() -> None:
    logits = row(-np.inf, -np.inf, 1, -np.inf)
    assert top_k_indices(logits, 2).tolist() == [0, 2]
    assert set(draws(SamplingParams(seed=1), logits, 50)) == {2}


def test_top_p_keeps_what_reaches_p() -> None:
    logits = np.log(row(0.1, 0.5, 0.15, 0.25))
    candidates = Candidates(np.arange(4), logits)
    assert [top_p(candidates, p).ids.tolist() for p in (0.0, 0.49, 0.6, 0.8, 0.95, 1.0)] == [
        [1],
        [1],
        [1, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 20.0])
@pytest.mark.parametrize("p", [0.1, 0.9, 0.999])
def test_top_p_alone_over_a_large_vocabulary(scale: float, p: float) -> None:
    logits = random_row(20_000, scale=scale)
    n_kept = top_p(Candidates(np.arange(logits.size), logits), p).ids.size
    share = np.sort(np.exp(reference.log_softmax(logits)))[::-1].cumsum()
    assert abs(n_kept - (int(np.searchsorted(share, p)) + 1)) <= 1


def test_min_p_measures_from_the_best() -> None:
    logits = np.log(row(0.1, 0.5, 0.15, 0.25))
    candidates = Candidates(np.arange(4), logits)
    assert [min_p(candidates, p).ids.tolist() for p in (0.0, 0.1, 0.25, 0.4, 1.0)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [1, 2, 3],
        [1, 3],
        [1],
    ]


@pytest.mark.parametrize("params", [{"top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1}, {"top_p": 0.0, "min_p": 1.0}])
def test_one_token_always_stays(params: dict[str, float]) -> None:
    logits = random_row(500)
    assert survivors(SamplingParams(**{**ALL_OFF, **params}), logits).ids.tolist() == [int(logits.argmax())]  # type: ignore[arg-type]


def test_steps_that_are_off_keep_everything() -> None:
    logits = random_row(500)
    kept = survivors(SamplingParams(**ALL_OFF), logits)
    assert kept.ids.size == 500
    np.testing.assert_allclose(kept.logits - kept.logits[0], logits - logits[0], atol=1e-5)


# The whole chain against the twin

PARAMS = [
    SamplingParams(),
    SamplingParams(temp=1.5, top_k=7),
    SamplingParams(temp=0.3, top_k=0, top_p=0.7),
    SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.2),
    SamplingParams(**ALL_OFF),
]


@pytest.mark.parametrize("params", PARAMS, ids=describe_chain)
@pytest.mark.parametrize("n_vocab", [5, 300, 5000])
def test_candidates_equal_the_twins(params: SamplingParams, n_vocab: int) -> None:
    logits = random_row(n_vocab, seed=n_vocab)
    ids, probs = reference.candidates(logits, params.temp, params.top_k, params.top_p, params.min_p)
    kept = survivors(params, logits)
    assert kept.ids.tolist() == sorted(ids.tolist())
    np.testing.assert_allclose(np.exp(reference.log_softmax(kept.logits)), probs[np.argsort(ids)], rtol=1e-5)


@pytest.mark.parametrize("params", PARAMS, ids=describe_chain)
def test_10000_draws_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-squared; with a fixed seed this either always passes or always fails."""
    n_draws, n_vocab = 10_000, 20
    logits = random_row(n_vocab, seed=9, scale=1.0)
    ids, probs = reference.candidates(logits, params.temp, params.top_k, params.top_p, params.min_p)
    sampler = Sampler(SamplingParams(**{**vars(params), "seed": 42}))
    counts = np.bincount([sampler.sample(logits) for _ in range(n_draws)], minlength=n_vocab)
    assert counts.sum() == counts[ids].sum()
    expected = probs * n_draws
    chi_squared = float(((counts[ids] - expected) ** 2 / expected).sum())
    degrees = len(ids) - 1
    assert chi_squared < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("u", [0.0, 0.2499, 0.25, 0.75, 1 - 2**-53])
def test_draw_lays_the_probabilities_end_to_end(u: float) -> None:
    candidates = Candidates(
        np.array([3, 5, 7, 9]), np.log(row(0, 1, 2, 1), where=row(0, 1, 2, 1) > 0, out=row(-np.inf, 0, 0, 0))
    )
    assert Draw().choose(candidates, u) == {0.0: 5, 0.2499: 5, 0.25: 7, 0.75: 9, 1 - 2**-53: 9}[u]


def test_draw_never_takes_a_token_without_weight() -> None:
    candidates = Candidates(np.array([1, 2]), row(0.0, -np.inf))
    assert Draw().choose(candidates, 1 - 2**-53) == 1


# Seeds (case 20)


def test_equal_seeds_draw_equally_and_others_do_not() -> None:
    logits = random_row(1000)
    first, again, other = (draws(SamplingParams(seed=s, temp=0.7), logits, 20) for s in (11, 11, 12))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [-1, 0xFFFFFFFF])
def test_an_open_seed_is_chosen_and_told(seed: int) -> None:
    samplers = [Sampler(SamplingParams(seed=seed, temp=1.5)) for _ in range(2)]
    assert samplers[0].seed != samplers[1].seed
    logits = random_row(1000, scale=0.1)
    told = Sampler(SamplingParams(seed=samplers[0].seed, temp=1.5))
    assert [told.sample(logits) for _ in range(20)] == [samplers[0].sample(logits) for _ in range(20)]


def test_draws_do_not_depend_on_other_sequences() -> None:
    rows = [random_row(500, seed=i) for i in range(10)]
    alone = Sampler(SamplingParams(seed=5))
    expected = [alone.sample(r) for r in rows]
    mixed, other = Sampler(SamplingParams(seed=5)), Sampler(SamplingParams(seed=6))
    assert [(other.sample(r), mixed.sample(r), other.sample(r))[1] for r in rows] == expected


def test_the_random_state_is_seed_and_count() -> None:
    rows = [random_row(500, seed=i) for i in range(6)]
    one = Sampler(SamplingParams(seed=5))
    expected = [one.sample(r) for r in rows]
    resumed = Sampler(SamplingParams(seed=5))
    resumed.n_drawn = 3
    assert [resumed.sample(r) for r in rows[3:]] == expected[3:]


def test_uniform_is_fixed_for_ever() -> None:
    """A change here changes everybody's seeded texts."""
    drawn = [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**32 - 2, 10**6)]
    assert drawn == [0.011546754286331562, 0.5023796042735054, 0.3035680343067586, 0.19352382741693186]


# Ruled-out tokens and bad logits (case 64)


def test_ignore_eos_never_chooses_an_end_token() -> None:
    logits = row(1, 9, 8, 2)
    assert Sampler(SamplingParams(temp=0), eog_ids=[1, 2]).sample(logits) == 1
    assert Sampler(SamplingParams(temp=0, ignore_eos=True), eog_ids=[1, 2]).sample(logits) == 3
    sampler = Sampler(SamplingParams(**ALL_OFF, ignore_eos=True, seed=1), eog_ids=[1, 2])
    assert {sampler.sample(logits) for _ in range(200)} == {0, 3}
    assert logits.tolist() == [1, 9, 8, 2]


@pytest.mark.parametrize(
    "params", [SamplingParams(temp=0), SamplingParams(), SamplingParams(**ALL_OFF)], ids=describe_chain
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 77, 99])
def test_bad_logits_are_a_named_error(params: SamplingParams, bad: float, place: int) -> None:
    logits = random_row(100)
    logits[place] = bad
    with pytest.raises(NumericsError, match="NaN" if np.isnan(bad) else "infinity"):
        Sampler(params).sample(logits)


def test_all_nan_and_nothing_allowed_are_named_errors() -> None:
    with pytest.raises(NumericsError):
        Sampler(SamplingParams()).sample(np.full(10, np.nan, dtype=np.float32))
    with pytest.raises(NumericsError, match="ruled out"):
        Sampler(SamplingParams(ignore_eos=True), eog_ids=range(10)).sample(random_row(10))


def test_the_logits_are_only_read() -> None:
    logits = random_row(1000)
    before = logits.copy()
    logits.flags.writeable = False
    draws(SamplingParams(seed=0), logits, 3)
    np.testing.assert_array_equal(logits, before)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=200),
    st.floats(-1, 50),
    st.integers(-1, 250),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**32 - 2),
)
@settings(max_examples=300, deadline=None)
def test_any_finite_logits_give_a_possible_token(
    values: list[float], temp: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = np.array(values, dtype=np.float32)
    params = SamplingParams(seed=seed, temp=temp, top_k=top_k, top_p=top_p, min_p=min_p)
    token = Sampler(params).sample(logits)
    assert 0 <= token < logits.size
    if top_k > 0:
        assert int((logits > logits[token]).sum()) < top_k


# The past


def test_the_last_tokens_are_those_accepted_and_those_chosen() -> None:
    sampler = Sampler(SamplingParams(temp=0, repeat_last_n=4, dry_penalty_last_n=2))
    sampler.accept([1, 2, 3])
    sampler.sample(row(0, 9))
    assert [sampler.last(n).tolist() for n in (0, 2, 4, 9)] == [[], [3, 1], [1, 2, 3, 1], [1, 2, 3, 1]]
    sampler.sample(row(9, 0))
    assert sampler.last(9).tolist() == [2, 3, 1, 0]


def test_looking_at_the_candidates_changes_nothing() -> None:
    logits, looked = random_row(300), Sampler(SamplingParams(seed=5, xtc_probability=0.5, mirostat=0))
    plain = Sampler(SamplingParams(seed=5, xtc_probability=0.5))
    found = []
    for _ in range(20):
        assert looked.candidates(logits).ids.tolist() == looked.candidates(logits).ids.tolist()
        found.append(looked.sample(logits))
    assert found == [plain.sample(logits) for _ in range(20)]


def test_greedy_is_the_best_that_the_steps_leave() -> None:
    """XTC and typical may drop the best token; llama.cpp then takes the best of the rest."""
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    assert Sampler(SamplingParams(temp=0)).sample(logits) == 0
    assert Sampler(SamplingParams(temp=0, xtc_probability=1, xtc_threshold=0.25)).sample(logits) == 1
    assert Sampler(SamplingParams(temp=0, typical_p=0.1)).sample(logits) == 1
    assert Sampler(SamplingParams(temp=0, samplers=("temperature", "xtc"), xtc_probability=1)).sample(logits) == 0
    sampler = Sampler(SamplingParams(temp=0, presence_penalty=9))
    assert [sampler.sample(logits) for _ in range(4)] == [0, 1, 2, 3]
    assert len(set(draws(SamplingParams(temp=0, dynatemp_range=5, seed=1), logits, 50))) > 1


def test_a_draw_among_many_runs_of_weights() -> None:
    """More than a run of 1,024: each id is met at its share, and the ends belong to the ends."""
    logits = np.full(5000, 0.0, dtype=np.float32)
    candidates = Candidates.all_of(logits)
    for u in (0.0, 0.2, 0.5, 0.99999):
        assert Draw().choose(candidates, u) == int(u * 5000)
    assert Draw().choose(candidates, 1 - 2**-53) == 4999
    logits[4000:] = -np.inf
    assert Draw().choose(Candidates.all_of(logits), 1 - 2**-53) == 3999


def test_top_p_is_reached_and_typical_p_exceeded() -> None:
    """Four equal tokens: two of them are exactly one half."""
    logits = row(1, 1, 1, 1)
    assert survivors(SamplingParams(**ALL_OFF | {"top_p": 0.5}), logits).ids.tolist() == [0, 1]
    assert survivors(SamplingParams(**ALL_OFF | {"typical_p": 0.5}), logits).ids.tolist() == [0, 1, 2]
