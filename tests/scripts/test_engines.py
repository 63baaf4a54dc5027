"""The engines behind one interface: our worker for real, llama.cpp's programs and ik_llama.cpp's library as fakes."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.bench import ik_worker
from scripts.bench.engines import LlamaCpp, open_engines, open_ik, open_llmkit
from scripts.bench.jobs import Job
from scripts.bench.llmkit_worker import Worker
from scripts.bench.peers import IK_LLAMA_CPP, LLAMA_CPP, PeerError
from tests.make_models import make_model
from tests.scripts.fake_peers import install, write_program

PROMPT, GENERATE, DEEP = Job("prompt", 12), Job("generate", 3), Job("generate", 3, depth=20)
TOGETHER = Job("together", 2, n_sequences=4, n_prompt=5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("engines") / "tiny.gguf", type="Q8_0")


def test_names() -> None:
    assert [job.name for job in (PROMPT, GENERATE, DEEP, TOGETHER)] == ["pp12", "tg3", "tg3 @ d20", "4x tg2"]
    assert [job.n_tokens for job in (PROMPT, GENERATE, DEEP, TOGETHER)] == [12, 3, 3, 8]


# -- llmkit -------------------------------------------------------------------------------------------------------


def test_our_worker(tiny: Path) -> None:
    with open_llmkit(tiny, 2) as engine:
        rates = engine.run([PROMPT, GENERATE, DEEP, TOGETHER], 2)
        assert [len(values) for values in rates] == [2, 2, 2, 2]
        assert all(rate > 0 for values in rates for rate in values)
        with pytest.raises(PeerError, match="llmkit: "):
            engine.run([Job("prompt", 0, depth=-1)])
        assert len(engine.run([GENERATE])) == 1  # an error ends a job, not the worker


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="llmkit ended with 1") as caught, open_llmkit(tmp_path / "none.gguf", 1):
        pass
    assert "none.gguf" in caught.value.hint


class SpyContext:
    """Counts the tokens of each call of decode."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from llmkit.engine.context import Context

        original = Context.decode

        def decode(ctx: Any, segments: Any) -> Any:
            self.calls.append([len(segment.tokens) for segment in segments])
            return original(ctx, segments)

        monkeypatch.setattr(Context, "decode", decode)


def test_what_our_worker_computes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt warms up with a whole one, a generation with one token; a depth is computed once and kept."""
    from llmkit.models.model import load_model

    spy = SpyContext()
    spy.install(monkeypatch)
    worker = Worker(load_model(tiny), 1)
    worker.do(PROMPT)
    worker.do(GENERATE)
    assert spy.calls == [[12], [12], [1], [1], [1], [1]]
    spy.calls.clear()
    worker.do(DEEP)
    worker.do(DEEP)
    assert spy.calls == [[20], *[[1]] * 8]
    spy.calls.clear()
    worker.do(TOGETHER)
    assert spy.calls == [[5]] * 4 + [[1, 1, 1, 1]] * 2


def test_our_worker_goes_back_in_a_model_with_windows(tmp_path: Path) -> None:
    from llmkit.models.model import load_model

    worker = Worker(load_model(make_model(tmp_path / "m.gguf", arch="gemma3", window=4)), 1)
    assert worker.do(Job("generate", 40, depth=100)) > 0
    assert worker.do(Job("generate", 40, depth=100)) > 0


# -- llama.cpp ----------------------------------------------------------------------------------------------------

LLAMA_BENCH = """
    import json, os, sys
    args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    print("some words that are not JSON")
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps(args) + "\\n")
    for key, field in (("-p", "n_prompt"), ("-n", "n_gen")):
        for n in map(int, args[key].split(",")):
            if n:
                print(json.dumps({field: n, "samples_ns": [10**9 * (i + 1) for i in range(int(args["-r"]))]}))
"""
BATCHED_BENCH = """
    import json, os, sys
    args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps(args) + "\\n")
    print(json.dumps({"t_tg": 0.5, "pl": int(args["-npl"])}))
"""


@pytest.fixture
def calls(peer_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake programs of llama.cpp write what they were asked."""
    install(LLAMA_CPP, {"llama-bench": LLAMA_BENCH, "llama-batched-bench": BATCHED_BENCH})
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def asked(calls: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_llama_cpp(calls: Path) -> None:
    """Jobs of one depth share a process, and come back in the order in which they were asked."""
    engine = LlamaCpp(Path("m.gguf"), 3)
    rates = engine.run([GENERATE, TOGETHER, PROMPT, DEEP], 2)
    assert rates == [[3.0, 1.5], [16.0, 16.0], [12.0, 6.0], [3.0, 1.5]]
    flat, deep, *together = asked(calls)
    assert (flat["-m"], flat["-t"], flat["-p"], flat["-n"], flat["-d"], flat["-r"]) == (
        "m.gguf",
        "3",
        "12",
        "3",
        "0",
        "2",
    )
    assert (deep["-p"], deep["-n"], deep["-d"]) == ("0", "3", "20")
    assert flat["-fa"] == "1"
    assert [(call["-npp"], call["-ntg"], call["-npl"], call["-c"]) for call in together] == [("5", "2", "4", "28")] * 2


def test_llama_cpp_that_fails(peer_cache: Path) -> None:
    install(LLAMA_CPP, {"llama-bench": "import sys; sys.exit('no such model')"})
    with pytest.raises(PeerError, match="llama-bench ended with 1") as caught:
        LlamaCpp(Path("m.gguf"), 1).run([PROMPT])
    assert caught.value.hint == "no such model"


FORGETFUL = """
    import os, pathlib
    mark = pathlib.Path(os.environ["CALLS"])
    with mark.open("a") as file:
        file.write("x")
    print('{"t_tg": 0.25}' if len(mark.read_text()) >= int(os.environ["FROM"]) else "")
"""


def test_llama_cpp_that_loses_its_output_is_asked_again(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(LLAMA_CPP.program("llama-batched-bench"), FORGETFUL)
    monkeypatch.setenv("FROM", "3")
    assert LlamaCpp(Path("m.gguf"), 1).run([TOGETHER]) == [[32.0]]
    assert calls.read_text() == "xxx"
    monkeypatch.setenv("FROM", "999")
    with pytest.raises(PeerError, match="printed nothing"):
        LlamaCpp(Path("m.gguf"), 1).run([TOGETHER])


@pytest.mark.usefixtures("peer_cache")
def test_peers_that_are_not_built() -> None:
    with pytest.raises(PeerError, match=r"llama\.cpp is not built"):
        LlamaCpp(Path("m.gguf"), 1)
    with pytest.raises(PeerError, match=r"ik_llama\.cpp is not built"):
        open_ik(Path("m.gguf"), 1)


# -- ik_llama.cpp -------------------------------------------------------------------------------------------------


class FakeIk:
    """Takes the place of the library: remembers each batch as (tokens, first position, sequences)."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.contexts: list[tuple[int, int]] = []
        self.removed: list[tuple[int, int]] = []
        self.library = SimpleNamespace(
            llama_n_vocab=lambda model: 100,
            llama_kv_cache_seq_rm=lambda ctx, seq, first, last: self.removed.append((ctx, first)),
            llama_batch_get_one=lambda tokens, n, pos, seq: (len(list(tokens)), pos, [seq]),
        )
        self.types = SimpleNamespace(llama_free=lambda ctx: self.batches.append("freed"), llama_batch=SimpleNamespace)

    def load(self, path: str, repack: bool) -> int:
        return 7

    def context(self, model: int, n_ctx: int, n_threads: int, n_sequences: int) -> int:
        self.contexts.append((n_ctx, n_sequences))
        return len(self.contexts)

    def decode(self, ctx: int, batch: Any) -> None:
        if isinstance(batch, SimpleNamespace):
            rows = range(batch.n_tokens)
            assert all(batch.logits[i] and batch.n_seq_id[i] == 1 and 0 <= batch.token[i] < 100 for i in rows)
            batch = (batch.n_tokens, batch.pos[0], [batch.seq_id[i][0] for i in rows])
        self.batches.append(batch)


@pytest.fixture
def ik(monkeypatch: pytest.MonkeyPatch) -> FakeIk:
    fake = FakeIk()
    monkeypatch.setattr(ik_worker, "Ik", lambda: fake)
    random.seed(0)
    return fake


def test_ik_prompts_and_generations(ik: FakeIk) -> None:
    worker = ik_worker.Worker("m.gguf", 2, repack=False)
    worker.do(PROMPT)
    worker.do(GENERATE)
    assert ik.batches == [(12, 0, [0])] * 2 + [(1, 0, [0]), *((1, pos, [0]) for pos in range(3))]
    assert ik.removed == [(1, 0)] * 4
    assert ik.contexts == [(512, 1)]


def test_ik_at_a_depth(ik: FakeIk) -> None:
    """The depth is computed once, in batches; each repetition begins after it."""
    worker = ik_worker.Worker("m.gguf", 2, repack=False)
    job = Job("generate", 2, depth=3000)
    worker.do(job)
    worker.do(job)
    once = [(1, 3000, [0]), (1, 3000, [0]), (1, 3001, [0])]
    assert ik.batches == [(2048, 0, [0]), (952, 2048, [0]), *once, *once]
    assert ik.contexts == [(3584, 1)]


def test_ik_sequences_together(ik: FakeIk) -> None:
    ik_worker.Worker("m.gguf", 2, repack=False).do(TOGETHER)
    everybody = [0, 1, 2, 3]
    assert ik.batches == [*((5, 0, [seq]) for seq in everybody), (4, 5, everybody), (4, 6, everybody), "freed"]
    assert ik.contexts == [(256, 4)]


@pytest.mark.usefixtures("peer_cache")
def test_the_ik_worker_is_started_with_its_package(tmp_path: Path) -> None:
    """A package that is there but no library: the process says so, and the error passes it on."""
    install(IK_LLAMA_CPP, {})
    (IK_LLAMA_CPP.folder / IK_LLAMA_CPP.module / "__init__.py").write_text(
        "raise SystemExit('fake package: ' + __file__)"
    )
    with pytest.raises(PeerError, match=r"ik_llama\.cpp ended with 1") as caught, open_ik(Path("m.gguf"), 1):
        pass
    assert "fake package" in caught.value.hint
    assert str(IK_LLAMA_CPP.folder) in caught.value.hint


def test_engines_are_opened_by_name(tiny: Path, calls: Path) -> None:
    with open_engines(tiny, 1, ["llama.cpp", "llmkit"]) as engines:
        assert [engine.name for engine in engines] == ["llama.cpp", "llmkit"]
        assert [len(engine.pids) for engine in engines] == [0, 1]
        pid = engines[1].pids[0]
        if sys.platform == "linux":
            assert Path(f"/proc/{pid}").exists()
    if sys.platform == "linux":
        assert not Path(f"/proc/{pid}").exists()
