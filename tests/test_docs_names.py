"""README and docs/ name what exists: files, functions, links, commands, what runs."""

import re
from pathlib import Path

import pytest

from llmkit import cli
from llmkit.kernels.kv_types.registry import TYPES as KV_SIZES
from llmkit.kernels.kv_types.registry import head_bytes
from llmkit.models.registry import FAMILIES
from llmkit.quants.registry import TYPES, quant_type
from tests.paths import REPO_ROOT

README = REPO_ROOT / "README.md"
PAGES = [README, *sorted((REPO_ROOT / "docs").rglob("*.md"))]
EXAMPLES = {"kernels/relu_squared.py", "tests/kernels/test_relu_squared.py"}  # files that a page tells how to write

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO_ROOT).as_posix())


def source(name: str) -> Path | None:
    """The file that a page means: from the root of the repository, or of the package."""
    return next((p for p in (REPO_ROOT / name, REPO_ROOT / "llmkit" / name) if p.is_file()), None)


def defines(text: str, name: str) -> bool:
    """Whether a module has each part of a dotted name: a class, a function, or a constant."""
    return all(re.search(rf"^\s*(def|class) {part}\b|^{part}\b.*=", text, re.MULTILINE) for part in name.split("."))


@every_page
def test_files_and_functions(page: Path) -> None:
    found = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?", page.read_text(encoding="utf-8"))
    wrong = []
    for file, name in found:
        path = source(file)
        if file not in EXAMPLES and (path is None or (name and not defines(path.read_text(encoding="utf-8"), name))):
            wrong.append(f"{file}:{name}")
    assert not wrong


@every_page
def test_links(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_search_finds_what_is_wrong() -> None:
    assert source("models/plan.py") is not None
    assert source("models/no_such.py") is None
    text = (REPO_ROOT / "llmkit" / "models" / "plan.py").read_text(encoding="utf-8")
    assert defines(text, "Plan.logits")
    assert not defines(text, "Plan.no_such")


def test_readme_says_what_runs() -> None:
    text = README.read_text(encoding="utf-8")
    missing = [arch for arch in FAMILIES if not re.search(rf"\b{re.escape(arch)}\b", text)]
    missing += [name for name, *_ in TYPES.values() if not re.search(rf"\b{name}\b", text)]
    missing += [name for name in cli.COMMANDS if f"docs/commands/{name}.md" not in text]
    assert not missing


def test_the_table_of_tiles() -> None:
    """docs/kernels.md has a row with the sizes of every type's tile, in the cache and in the file."""
    page = (REPO_ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    shown = {name: [row[1], *row[-2:]] for row in rows if len(row) == 6 for name in row[0].split(", ")}
    for type_id in TYPES:
        t = quant_type(type_id)
        n_file = 16 * t.row_bytes(t.tile_block)
        assert shown.get(t.name) == [str(t.tile_block), str(t.tile_bytes), str(n_file)], t.name


def test_the_table_of_kv_types() -> None:
    """docs/kernels.md and run's page have a row for every KV type, with its size."""
    for page, n_cols in (("kernels.md", 6), ("commands/run.md", 5)):
        text = (REPO_ROOT / "docs" / page).read_text(encoding="utf-8")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
        shown = {name: row for row in rows if len(row) == n_cols for name in row[0].split(", ")}
        for name, (values, n_bytes) in KV_SIZES.items():
            bits = f"{8 * n_bytes / values:g}"
            sizes = [bits] if n_cols == 5 else [str(values), str(n_bytes), str(head_bytes(name, 64))]
            assert set(sizes) <= set(shown[name][1:]), name


def test_readme_shows_every_folder() -> None:
    folders = {p.parent.relative_to(REPO_ROOT) for p in (REPO_ROOT / "llmkit").glob("*/__init__.py")}
    tree = README.read_text(encoding="utf-8")
    assert not [f.as_posix() for f in folders if f"\n{f.as_posix()}/ " not in tree]


def test_nothing_names_a_place_outside() -> None:
    """No page knows where the authors' files lie."""
    assert not [p for p in PAGES if re.search(r"/(work|tmp|home|root)/|\.\./shared", p.read_text(encoding="utf-8"))]
