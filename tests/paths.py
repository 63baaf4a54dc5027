"""Where the tests find what is not in the repository: the shared test data and the real models.

Owns paths and the skip marks that go with them; knows nothing about what the files hold.
"""

import os
from pathlib import Path

import pytest

REPO_ROOT: Path = Path(__file__).resolve().parents[1]
SHARED: Path = REPO_ROOT.parent / "shared"
"""The project's shared folder, beside the repository; absent in a plain checkout."""

DATA: Path = SHARED / "data"
TINY: Path = DATA / "tiny"
VOCAB: Path = DATA / "vocab"

need_shared = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared test data is not there: {DATA}")
"""Skips a test, or a module through `pytestmark`, where the shared test data is absent."""

SKIP_SLOW: bool = os.environ.get("LLMKIT_SKIP_SLOW", "") not in ("", "0")
"""Set LLMKIT_SKIP_SLOW=1 to leave out the tests that take more than a few seconds."""
