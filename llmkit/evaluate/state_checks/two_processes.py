"""Two processes that have one state file loaded at the same time: each goes on as if alone, on the same pages.

Run as a module this is such a process: it reads what to do as JSON from stdin, writes what it saw into the pipe whose
number it is given, and keeps the file mapped until stdin ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llmkit.evaluate.state_checks.going_on import DifferenceError

if TYPE_CHECKING:
    from llmkit.evaluate.state_checks.setting import Setting

_SMAPS = Path("/proc/self/smaps")


def two_processes(s: Setting) -> str:
    """Both give the baseline's ids, and the pages of the file are there once; in words, or DifferenceError."""
    job = {
        "model": str(s.model.gguf.path),
        "state": str(s.file),
        "n_predict": s.n_predict,
        "n_ctx": len(s.prompt) + s.n_predict + 1,
        "n_threads": s.params.n_threads,
        "type_k": s.params.type_k,
        "type_v": s.params.type_v,
        "swa_full": s.params.swa_full,
    }
    with _reader() as first, _reader() as second:
        answers = [reader.ask(json.dumps(job)) for reader in (first, second)]
        shared = [reader.ask("pages") for reader in (first, second)]  # now that both have it mapped
    if any(answer["ids"] != s.baseline.ids for answer in answers):
        raise DifferenceError("a process went on otherwise")
    if any(pages is None for pages in shared):
        return "both go on alike; pages are not counted here"
    rss, pss = (sum(pages[i] for pages in shared) for i in (0, 1))
    if pss > 0.6 * rss:
        raise DifferenceError(f"pages are not shared: {pss} of {rss} bytes")
    return f"both go on alike, {rss >> 20} MiB mapped on {pss >> 20} MiB of pages"


@dataclass(frozen=True)
class _Reader:
    """Such a process: where it is asked, and where it answers."""

    process: subprocess.Popen[str]
    questions: IO[str]
    answers: IO[str]

    def ask(self, question: str) -> Any:
        """What it says to that."""
        self.questions.write(question + "\n")
        self.questions.flush()
        line = self.answers.readline()
        if not line:
            raise DifferenceError(f"a process ended with {self.process.wait()}")
        return json.loads(line)


@contextmanager
def _reader() -> Iterator[_Reader]:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", __name__, str(writing)]
    with (
        open(reading, encoding="utf-8") as answers,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[writing]) as process,
    ):
        os.close(writing)
        assert process.stdin
        try:
            yield _Reader(process, process.stdin, answers)
        finally:
            process.stdin.close()
            process.wait()


# -- such a process -----------------------------------------------------------------------------------------------


def main() -> None:
    """Loads the state, goes on, and tells of its pages when asked."""
    from llmkit.engine.context import Context
    from llmkit.engine.state.save_load import cut_last, load_state
    from llmkit.evaluate.state_checks.going_on import go_on
    from llmkit.models.model import load_model
    from llmkit.params import ContextParams

    job = json.loads(sys.stdin.readline())
    params = ContextParams(
        n_ctx=job["n_ctx"], n_threads=job["n_threads"], type_k=job["type_k"], type_v=job["type_v"],
        swa_full=job["swa_full"],
    )  # fmt: skip
    with open(int(sys.argv[1]), "w", encoding="utf-8") as answers, Context(load_model(job["model"]), params) as ctx:
        seq = ctx.memory.sequence(0)
        load_state(ctx, job["state"], seq)
        _answer(answers, {"ids": go_on(ctx, seq, cut_last(ctx, seq), job["n_predict"]).ids})
        for _ in sys.stdin:
            _answer(answers, _pages(Path(job["state"]).name))


def _answer(answers: IO[str], value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _pages(name: str) -> list[int] | None:
    """Bytes of the file that are resident, and this process's part of them; None where the system does not tell."""
    if not _SMAPS.exists():
        return None
    found, inside = {"Rss:": 0, "Pss:": 0}, False
    for line in _SMAPS.read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            inside = line.endswith(f"/{name}")
        elif inside and words[0] in found:
            found[words[0]] += 1024 * int(words[1])
    return list(found.values())


if __name__ == "__main__":
    main()
