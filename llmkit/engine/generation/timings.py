"""What a completion cost: counts and seconds of its phases, and the rates that follow from them.

Owns the definitions. Knows nothing about how they are shown.

load: opening the model. kernels: compiling or loading the compiled code. prompt: computing the prompt's tokens. decode:
computing, choosing and spelling the tokens after the first, whose logits are the prompt's; so `decode_n` is one less
than the number of tokens generated, and waiting for whoever reads them is not counted. first token: from `started`,
when the prompt was known (in a command, before the model is opened), to its text.
"""

import time
from dataclasses import dataclass, field


@dataclass
class Timings:
    """Filled in as the phases end. Seconds; `started` is on the clock of `time.perf_counter`."""

    load_s: float = 0.0
    kernels_s: float = 0.0
    prompt_n: int = 0
    prompt_s: float = 0.0
    decode_n: int = 0
    decode_s: float = 0.0
    first_token_s: float | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def prompt_per_second(self) -> float | None:
        """Prompt tokens per second, or None if there were none."""
        return _rate(self.prompt_n, self.prompt_s)

    @property
    def decode_per_second(self) -> float | None:
        """Generated tokens per second, or None if there were less than two."""
        return _rate(self.decode_n, self.decode_s)

    def mark_first_token(self) -> None:
        """A token's text is known now: the first, unless there was one before."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.started

    def to_json(self) -> dict[str, float | int | None]:
        """Times in milliseconds, names as in llama.cpp's server where it has them."""
        return {
            "load_ms": _ms(self.load_s),
            "kernels_ms": _ms(self.kernels_s),
            "prompt_n": self.prompt_n,
            "prompt_ms": _ms(self.prompt_s),
            "prompt_per_second": _rounded(self.prompt_per_second),
            "decode_n": self.decode_n,
            "decode_ms": _ms(self.decode_s),
            "decode_per_second": _rounded(self.decode_per_second),
            "first_token_ms": _ms(self.first_token_s),
        }

    def lines(self) -> list[str]:
        """The same for people, a phase a line."""
        first = "-" if self.first_token_s is None else f"{self.first_token_s * 1e3:.1f} ms"
        return [
            f"load        {self.load_s * 1e3:10.1f} ms",
            f"kernels     {self.kernels_s * 1e3:10.1f} ms",
            f"prompt      {_phase(self.prompt_n, self.prompt_s, self.prompt_per_second)}",
            f"decode      {_phase(self.decode_n, self.decode_s, self.decode_per_second)}",
            f"first token {first:>13}",
        ]


def _rate(n: int, seconds: float) -> float | None:
    return n / seconds if n and seconds > 0 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _phase(n: int, seconds: float, rate: float | None) -> str:
    return f"{seconds * 1e3:10.1f} ms / {n} tokens" + ("" if rate is None else f" = {rate:.1f} t/s")
