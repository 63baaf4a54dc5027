"""What is measured of each engine, and the lines of JSON in which a worker is asked and answers.

A worker is a process that keeps one model open: `python -m scripts.bench.llmkit_worker MODEL THREADS`. It says
{"ready": seconds}, then answers each Job, a line, with {"seconds": s} or {"error": text}, until its stdin ends.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """`prompt`: n tokens in batches. `generate`: n tokens one by one after `depth` others. `together`: n steps, each a
    token for each of `n_sequences` sequences, after prompts of `n_prompt` tokens.

    As llama-bench and llama-batched-bench do them: a prompt is warmed up by a whole one, a generation by one token.
    """

    kind: str
    n: int
    depth: int = 0
    n_sequences: int = 1
    n_prompt: int = 0

    @property
    def name(self) -> str:
        """llama-bench's name of the test; `8x tg32` for sequences together."""
        if self.kind == "together":
            return f"{self.n_sequences}x tg{self.n}"
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{'pp' if self.kind == 'prompt' else 'tg'}{self.n}{depth}"

    @property
    def n_tokens(self) -> int:
        """Tokens that are timed."""
        return self.n * self.n_sequences

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def serve(do: Callable[[Job], float], started: float) -> None:
    """The worker's side: answers jobs until stdin ends. `started`: seconds that opening the model took."""
    _say({"ready": started})
    for line in sys.stdin:
        try:
            _say({"seconds": do(Job(**json.loads(line)))})
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
