"""The draws of C++'s generators. The expected ones come from a program compiled with g++ 12 (libstdc++)."""

import numpy as np
import pytest

from llmkit.evaluate import cpp_random

UNIFORM_10 = [4, 9, 6, 8, 0, 1, 3, 7, 2, 5]
SCALED_10 = [4, 8, 5, 6, 0, 7, 1, 2, 9, 3]
UNIFORM_10042 = [4187, 10013, 7233, 9363, 1]
SCALED_1267 = [528, 1262, 911, 1178, 0]


def test_mt19937() -> None:
    """std::mt19937(1), the first five."""
    numbers = cpp_random._mt19937()
    assert [next(numbers) for _ in range(5)] == [1791095845, 4282876139, 3093770124, 4005303368, 491263]


def test_the_draws_are_llama_cpps() -> None:
    assert cpp_random.draw_uniform(10, 10) == UNIFORM_10
    assert cpp_random.draw_scaled(10, 10) == SCALED_10
    assert cpp_random.draw_uniform(10042, 5) == UNIFORM_10042
    assert cpp_random.draw_scaled(1267, 5) == SCALED_1267


@pytest.mark.parametrize("draw", [cpp_random.draw_uniform, cpp_random.draw_scaled])
@pytest.mark.parametrize(("n", "wanted"), [(1, 1), (7, 3), (7, 9), (1000, 400)])
def test_no_task_comes_twice(draw: object, n: int, wanted: int) -> None:
    chosen = draw(n, wanted)  # type: ignore[operator]
    assert len(chosen) == min(n, wanted)
    assert len(set(chosen)) == len(chosen)
    assert np.isin(chosen, np.arange(n)).all()
