"""The codebooks equal those of the `gguf` package."""

import numpy as np
import pytest
from gguf import quants

from llmkit.quants import iq_grids


@pytest.mark.parametrize("name", ["IQ1", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_grid(name: str) -> None:
    theirs = getattr(quants, "IQ1_S" if name == "IQ1" else name)
    theirs.init_grid()
    n_cols = theirs.grid_shape[1]
    fields = getattr(iq_grids, name)[:, None] >> np.arange(0, 16, 16 // n_cols, dtype=np.uint16)
    ours = np.array(theirs.grid_map)[fields & ((1 << 16 // n_cols) - 1)]
    np.testing.assert_array_equal(ours, theirs.grid.reshape(theirs.grid_shape))
