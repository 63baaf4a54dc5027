"""docs/models.md says what the code runs: it is what scripts/models_page makes."""

from llmkit.models.registry import FAMILIES
from llmkit.quants.registry import TYPES
from scripts.models_page import page
from tests.paths import REPO_ROOT


def test_the_page_is_up_to_date() -> None:
    written = (REPO_ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m scripts.models_page > docs/models.md"


def test_the_page_names_everything() -> None:
    lines = page().splitlines()
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in FAMILIES)
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name, *_ in TYPES.values())
    assert "llama-bpe" in page()
