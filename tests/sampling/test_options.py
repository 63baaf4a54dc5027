"""Sampling options as people write them, and the ranges of all values."""

from typing import Any

import pytest

from llmkit.errors import UsageError
from llmkit.params import ALL_SAMPLERS, SAMPLERS, SamplingParams
from llmkit.sampling.options import parse_logit_bias, parse_sampler_seq, parse_samplers


def test_the_order_and_its_letters_are_llama_cpps() -> None:
    assert ";".join(SAMPLERS) == "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert parse_sampler_seq("edskypmxt") == SAMPLERS
    assert parse_sampler_seq("a") == ("adaptive_p",)
    assert parse_samplers(";".join(ALL_SAMPLERS)) == ALL_SAMPLERS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("top_k;temperature", ("top_k", "temperature")),
        ("Top-K; TEMP", ("top_k", "temperature")),
        ("topk;minp;topnsigma;adaptivep", ("top_k", "min_p", "top_n_sigma", "adaptive_p")),
        ("nucleus;typ;typ-p;typical;typp", ("top_p", "typ_p", "typ_p", "typ_p", "typ_p")),
        ("top_k;top_k", ("top_k", "top_k")),
        ("", ()),
    ],
)
def test_names_of_steps(text: str, expected: tuple[str, ...]) -> None:
    assert parse_samplers(text) == expected


@pytest.mark.parametrize("text", ["infill", "top_k;;temp", "top_q", "top_k,temp", ";"])
def test_unknown_steps_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="there is no sampler"):
        parse_samplers(text)


@pytest.mark.parametrize("text", ["z", "k t", "i"])
def test_unknown_letters_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no sampler has the letter"):
        parse_sampler_seq(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15043+1", (15043, 1.0)),
        ("15043-0.5", (15043, -0.5)),
        ("0-inf", (0, float("-inf"))),
        ("7+.5", (7, 0.5)),
        ("7-1e3", (7, -1000.0)),
        (" 7 + 2 ", (7, 2.0)),
    ],
)
def test_a_logit_bias(text: str, expected: tuple[int, float]) -> None:
    assert parse_logit_bias(text) == expected


@pytest.mark.parametrize(
    "text", ["", "7", "+1", "7*2", "7+", "7+x", "-7+1", "7+1+1", "7+nan", "1_0+1", "99999999999+1"]
)
def test_a_bias_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_logit_bias(text)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_n_sigma", (float("nan"), float("inf"))),
        ("typical_p", (-0.1, 1.1, float("nan"))),
        ("xtc_probability", (-0.1, 1.1, float("nan"))),
        ("xtc_threshold", (-0.1, 1.1, float("nan"))),
        ("dynatemp_range", (-1.0, float("inf"), float("nan"))),
        ("dynatemp_exponent", (-1.0, float("inf"), float("nan"))),
        ("repeat_last_n", (-1,)),
        ("repeat_penalty", (0.0, -1.0, 1e-39, float("inf"), float("nan"))),
        ("frequency_penalty", (float("inf"), float("-inf"), float("nan"))),
        ("presence_penalty", (float("inf"), float("-inf"), float("nan"))),
        ("dry_multiplier", (-1.0, float("inf"), float("nan"))),
        ("dry_base", (0.9, float("inf"), float("nan"))),
        ("dry_allowed_length", (-1,)),
        ("dry_penalty_last_n", (-1,)),
        ("adaptive_target", (1.1, float("nan"))),
        ("adaptive_decay", (-0.1, 0.995, float("nan"))),
        ("mirostat", (-1, 3)),
        ("mirostat_tau", (-1.0, float("inf"), float("nan"))),
        ("mirostat_eta", (-1.0, float("inf"), float("nan"))),
        ("min_keep", (-1,)),
        ("logit_bias", (((-1, 1.0),), ((1, float("inf")),), ((1, float("nan")),))),
        ("samplers", (("infill",), ("top_k", ""))),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(UsageError, match="sampler" if name == "samplers" else name):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("more", [{}, {"samplers": (*SAMPLERS, "adaptive_p"), "mirostat": 2}])
def test_a_target_that_nothing_would_aim_at_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="adaptive_p is not among the samplers"):
        SamplingParams(adaptive_target=0.5, **more)
    SamplingParams(adaptive_target=-0.5, **more)


def test_biased_tokens_must_exist() -> None:
    SamplingParams(logit_bias=((9, 1.0),)).check_ids(10)
    with pytest.raises(UsageError, match="token 10"):
        SamplingParams(logit_bias=((9, 1.0), (10, 1.0))).check_ids(10)
