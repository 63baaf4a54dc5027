"""How many prompt tokens go into a step, and whose. Pure decisions; knows no requests.

A step should take no longer than those who are generating can wait. How long a prompt token takes is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

POINT_TOKENS = 1024
"""Between two places at most where a model with a window can be gone on from."""

_FIRST = 64  # before anything was measured
_FEWEST, _FEWEST_ALONE = 16, 64
_REST = 1.5
_MEASURABLE = 8  # prompt tokens: a step with fewer says nothing about one with many
_WEIGHT = 0.3  # of the newest measurement


def equal_parts(wanted: Sequence[int], budget: int) -> list[int]:
    """Shares out `budget` tokens: all get as many, those who want fewer leave the rest to the others.

    What is left over when it cannot be divided goes to the first. sum(result) == min(budget, sum(wanted)).
    """
    parts, left = [0] * len(wanted), budget
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for n_served, i in enumerate(order):
        parts[i] = min(wanted[i], left // (len(wanted) - n_served))
        left -= parts[i]
    for i in range(len(wanted)):
        extra = min(left, wanted[i] - parts[i])
        parts[i] += extra
        left -= extra
    return parts


def cut_at(n_done: int, n: int, stops: Iterable[int]) -> int:
    """How many of n tokens behind the first n_done go into a chunk that ends at the first of the stops on its way."""
    return min([n, *(stop - n_done for stop in stops if stop > n_done)])


class ChunkSize:
    """Prompt tokens in a step: at most `most`, and so few that the whole step takes no longer than `seconds`.

    A step is taken to cost what one without prompts costs, and so much for each prompt token; both are measured. But
    they are never so few that most of the time goes into reading weights: that helps nobody when nobody generates.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._step_s, self._token_s = 0.0, 0.0

    def choose(self, n_wanted: int, someone_generates: bool) -> int:
        """How many of n_wanted tokens now; a small rest does not wait for a step of its own."""
        n = int((self.seconds - self._step_s) / self._token_s) if self._token_s else _FIRST
        n = max(n, _FEWEST if someone_generates else _FEWEST_ALONE)
        return min(self.most, n_wanted if n_wanted <= _REST * n else n)

    def measured(self, n_prompt: int, seconds: float) -> None:
        """Takes note of a step with n_prompt prompt tokens that took so long."""
        if seconds <= 0:
            return
        if n_prompt == 0:
            self._step_s = _mean(self._step_s, seconds)
        elif n_prompt >= _MEASURABLE:
            self._token_s = _mean(self._token_s, max(seconds - self._step_s, 0.1 * seconds) / n_prompt)


def _mean(old: float, new: float) -> float:
    """What was measured until now, and the newest, which counts for more."""
    return old + _WEIGHT * (new - old) if old else new
