"""The engines side by side: llmkit and ik_llama.cpp as workers, llama.cpp through its own llama-bench.

Owns how jobs are put to each. An engine has one model open; `run` gives, for each job, tokens a second of each
repetition.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from llmkit.bench.machine import LOWERED
from scripts.bench.jobs import Job
from scripts.bench.peers import IK_LLAMA_CPP, LLAMA_CPP, PEERS, Peer, PeerError

ROOT = Path(__file__).resolve().parents[2]
_TRIES = 10  # llama-batched-bench prints through a thread, and loses it all when it ends too soon


class Engine(Protocol):
    """An open model. `pids` are the processes that stay while it is idle."""

    name: str
    pids: list[int]

    def run(self, jobs: list[Job], reps: int = 1) -> list[list[float]]: ...


class WorkerEngine:
    """A worker process that is asked line by line."""

    def __init__(self, name: str, process: "subprocess.Popen[str]", errors: Any) -> None:
        self.name, self._process, self._errors = name, process, errors
        self.pids = [process.pid]
        self.load_seconds: float = self._answer()["ready"]

    def run(self, jobs: list[Job], reps: int = 1) -> list[list[float]]:
        """Tokens a second, by job and repetition."""
        return [[job.n_tokens / self._seconds(job) for _ in range(reps)] for job in jobs]

    def _seconds(self, job: Job) -> float:
        assert self._process.stdin
        self._process.stdin.write(job.to_line())
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        """The next line that is ours: a library may print what it likes."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise PeerError(f"{self.name}: {answer['error']}", self._tail())
                return answer
        raise PeerError(f"{self.name} ended with {self._process.wait()}", self._tail())

    def _tail(self) -> str:
        self._errors.seek(0)
        return "\n".join(str(self._errors.read()).splitlines()[-5:])


@contextmanager
def _worker(name: str, module: str, arguments: list[str], environment: dict[str, str]) -> Iterator[WorkerEngine]:
    command = [sys.executable, "-m", module, *arguments]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield WorkerEngine(name, process, errors)
        finally:
            # Closing its input ends a worker; one that hangs in a library is killed.
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def open_llmkit(model: Path, n_threads: int, isa: str | None = None) -> Any:
    """llmkit's engine, in a process of its own like the others; isa: compiled for less than the machine has."""
    environment = {**os.environ, **LOWERED.get(isa or "", {}), "PYTHONPATH": str(ROOT)}
    return _worker("llmkit", "scripts.bench.llmkit_worker", [str(model), str(n_threads)], environment)


def open_ik(model: Path, n_threads: int, repack: bool = False) -> Any:
    """ik_llama.cpp through its library; PeerError when it is not built."""
    environment = {**IK_LLAMA_CPP.environment(), "PYTHONPATH": os.pathsep.join([str(ROOT), str(IK_LLAMA_CPP.folder)])}
    IK_LLAMA_CPP.info()
    arguments = [str(model), str(n_threads), *(["repack"] if repack else [])]
    return _worker("ik_llama.cpp", "scripts.bench.ik_worker", arguments, environment)


class LlamaCpp:
    """llama.cpp through its own programs, which open the model each time."""

    def __init__(self, model: Path, n_threads: int, peer: Peer = LLAMA_CPP) -> None:
        self.name, self.pids, self._peer = peer.name, list[int](), peer
        self._model, self._n_threads = model, n_threads
        peer.info()

    def run(self, jobs: list[Job], reps: int = 1) -> list[list[float]]:
        """Tokens a second, by job and repetition; jobs of one depth share a process, as loading is not what we time."""
        rates: dict[Job, list[float]] = {}
        for depth in {job.depth: None for job in jobs if job.kind != "together"}:
            rates |= self._bench([job for job in jobs if job.depth == depth and job.kind != "together"], reps)
        for job in jobs:
            if job.kind == "together":
                rates[job] = [self._together(job) for _ in range(reps)]
        return [rates[job] for job in jobs]

    def _bench(self, jobs: list[Job], reps: int) -> dict[Job, list[float]]:
        """llama-bench, whose prompts come before its generations."""
        jobs = sorted(jobs, key=lambda job: job.kind != "prompt")
        n_prompt, n_gen = (
            ",".join(str(job.n) for job in jobs if (job.kind == "prompt") == is_prompt) or "0"
            for is_prompt in (True, False)
        )
        options = ["-p", n_prompt, "-n", n_gen, "-d", str(jobs[0].depth), "-r", str(reps), "-fa", "1", "-o", "jsonl"]
        found = self._lines("llama-bench", options)
        return {job: [job.n * 1e9 / ns for ns in line["samples_ns"]] for job, line in zip(jobs, found, strict=True)}

    def _together(self, job: Job) -> float:
        n_ctx = job.n_sequences * (job.n_prompt + job.n)
        sizes = ["-npp", str(job.n_prompt), "-ntg", str(job.n), "-npl", str(job.n_sequences), "-c", str(n_ctx)]
        for _ in range(_TRIES):
            found = self._lines("llama-batched-bench", [*sizes, "-fa", "on", "--output-format", "jsonl"])
            if found:
                return job.n_tokens / float(found[0]["t_tg"])
        raise PeerError(f"llama-batched-bench printed nothing {_TRIES} times", "a larger model or more tokens may help")

    def _lines(self, program: str, options: list[str]) -> list[dict[str, Any]]:
        """The lines of JSON that a program prints, among others."""
        command = [str(self._peer.program(program)), "-m", str(self._model), "-t", str(self._n_threads), *options]
        done = subprocess.run(command, env=self._peer.environment(), capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise PeerError(f"{program} ended with {done.returncode}", "\n".join(done.stderr.splitlines()[-5:]))
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@contextmanager
def open_engines(
    model: Path, n_threads: int, names: list[str], repack: bool = False, isa: str | None = None
) -> Iterator[list[Engine]]:
    """The engines with these names, each with the model open; isa: what ours is compiled for, if not this machine."""
    with ExitStack() as stack:
        opened: list[Engine] = []
        for name in names:
            if name == "llmkit":
                opened.append(stack.enter_context(open_llmkit(model, n_threads, isa)))
            elif name == IK_LLAMA_CPP.name:
                opened.append(stack.enter_context(open_ik(model, n_threads, repack)))
            else:
                opened.append(LlamaCpp(model, n_threads, PEERS[name]))
        yield opened
