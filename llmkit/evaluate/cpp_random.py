"""The random choices that llama.cpp makes among tasks, so that the same tasks come in the same order.

Owns the arithmetic of C++'s mt19937 seeded with 1, libstdc++'s uniform_int_distribution, and llama.cpp's own scaling.
"""

from collections.abc import Iterator

import numpy as np

_SEED = 1
_TWO_32 = 1 << 32


def _mt19937() -> Iterator[int]:
    """32-bit numbers of std::mt19937(1)."""
    source = np.random.RandomState(_SEED)
    while True:
        yield from source.randint(0, _TWO_32, size=256, dtype=np.uint32).tolist()


def draw_uniform(n_tasks: int, n_wanted: int) -> list[int]:
    """hellaswag's order: one of those left after another (Lemire 2019, arXiv:1805.10941, as libstdc++ has it)."""
    numbers, left, chosen = _mt19937(), list(range(n_tasks)), list[int]()
    for _ in range(min(n_wanted, n_tasks)):
        n = len(left)
        product = next(numbers) * n
        if product % _TWO_32 < n:
            threshold = (_TWO_32 - n) % n
            while product % _TWO_32 < threshold:
                product = next(numbers) * n
        chosen.append(left.pop(product // _TWO_32))
    return chosen


def draw_scaled(n_tasks: int, n_wanted: int) -> list[int]:
    """winogrande's and multiple choice's: a float32 times the number left, the last one filling the hole."""
    numbers, left, chosen = _mt19937(), list(range(n_tasks)), list[int]()
    for _ in range(min(n_wanted, n_tasks)):
        unit = np.float32(next(numbers)) * np.float32(2.0**-32)
        at = min(int(unit * np.float32(len(left))), len(left) - 1)
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen
