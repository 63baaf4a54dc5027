"""The shape of the code: imports go one way, and one module prints."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import REPO_ROOT

LEAVES = {"errors", "files", "params"}

# Each part of llmkit, and the parts it may import. From the bottom up; report is for those who talk to a person.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "report": {"errors"},
    "params": {"errors"},
    "files": {"errors"},
    "tokenizer": {"errors", "files"},
    "simd": LEAVES,
    "kernels": LEAVES | {"simd"},
    "quants": LEAVES | {"simd", "kernels"},
    "memory": LEAVES | {"simd", "kernels"},
    "store": LEAVES | {"memory"},
    "models": LEAVES | {"simd", "kernels", "quants", "memory", "tokenizer"},
    "sampling": LEAVES | {"kernels"},
    "engine": LEAVES | {"sampling", "simd", "kernels", "quants", "memory", "store", "models", "tokenizer"},
    "bench": LEAVES | {"simd", "kernels", "quants", "memory", "models", "engine", "__init__"},
    "inspection": LEAVES | {"bench", "simd", "kernels", "quants", "memory", "models", "engine", "tokenizer"},
    "quantization": LEAVES | {"kernels", "quants"},
    "evaluate": LEAVES | {"engine", "models", "memory", "kernels", "quants", "tokenizer"},
    "serving": LEAVES | {"engine", "sampling", "memory", "store", "models", "tokenizer", "report"},
    "tools": LEAVES
    | {"bench", "evaluate", "inspection", "serving", "sampling", "engine", "memory", "store", "models", "quants"}
    | {"kernels", "simd"}
    | {"quantization", "tokenizer", "report", "shell"},
    "shell": {"errors", "report", "files"},
    "cli": {"errors", "report", "shell"},
    "__main__": {"cli", "shell"},
    "__init__": LEAVES | {"engine", "models", "sampling", "tokenizer"},
}

# The folders of llmkit/engine, and those they may import besides themselves; "" is what lies in none of them.
ENGINE: dict[str, set[str]] = {"": set(), "generation": {""}, "state": {""}, "scheduling": {"", "generation"}}

SOURCES = sorted([*(REPO_ROOT / "llmkit").rglob("*.py"), *(REPO_ROOT / "tools").rglob("*.py")])


def name_of(path: Path) -> str:
    """Where the file is from the repository's root, as the id of a test."""
    return path.relative_to(REPO_ROOT).as_posix()


def part_of(path: Path) -> str:
    """`files` for llmkit/files/x.py, `cli` for llmkit/cli.py, `tools` for tools/x.py."""
    inside = path.relative_to(REPO_ROOT).parts
    return "tools" if inside[0] == "tools" else inside[1].removesuffix(".py")


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """The full name of the module in `from module import ...`, whose dots count from the file's own package."""
    if not node.level:
        return node.module or ""
    inside = path.relative_to(REPO_ROOT).parts
    package = (("llmkit", *inside) if inside[0] == "tools" else inside)[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def imported_parts(path: Path, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The parts of llmkit that a file imports anywhere in it, with the line. `from llmkit import x` imports x."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node)
            names = [f"{module}.{alias.name}" if module == "llmkit" else module for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            assert first not in ("tools", "tests"), f"{name_of(path)} imports {name}"
            if first == "llmkit" and not rest.startswith("__"):
                yield rest.partition(".")[0], getattr(node, "lineno", 0)


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 10
    assert {"files", "tools", "cli"} <= {part_of(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    allowed = MAY_IMPORT[part] | {part}
    found = list(imported_parts(path, ast.parse(path.read_text(encoding="utf-8"))))
    wrong = [f"line {line} imports llmkit.{name}" for name, line in found if name not in allowed]
    assert not wrong, f"{part} may import {sorted(allowed)}"


def engine_folder(name: str) -> str:
    """`state` for llmkit.engine.state.info, "" for llmkit.engine.context."""
    folder = [*name.split("."), ""][2]
    return folder if folder in ENGINE else ""


@pytest.mark.parametrize("path", sorted((REPO_ROOT / "llmkit" / "engine").rglob("*.py")), ids=name_of)
def test_the_engines_folders_go_one_way(path: Path) -> None:
    folder = engine_folder(".".join(path.relative_to(REPO_ROOT).with_suffix("").parts))
    imports = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom)]
    names = [absolute(path, node) for node in imports]
    allowed = ENGINE[folder] | {folder}
    assert not [name for name in names if name.startswith("llmkit.engine.") and engine_folder(name) not in allowed]


def test_the_rule_has_no_cycle() -> None:
    """What a part may import may not import it, over any number of steps."""

    def reachable(part: str, seen: frozenset[str] = frozenset()) -> set[str]:
        return {further for near in MAY_IMPORT[part] - seen for further in {near} | reachable(near, seen | {near})}

    assert not [part for part in MAY_IMPORT if part in reachable(part)]


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name != "report.py"], ids=name_of)
def test_only_report_prints(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print",
            "typer.echo",
            "typer.secho",
            "sys.stdout.write",
            "sys.stderr.write",
            "sys.stdout.buffer.write",
            "os.write",
        ):
            wrong.append(f"line {node.lineno}: {ast.unparse(node.func)}")
    assert not wrong


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_runs_what_a_file_says(path: Path) -> None:
    """No pickle, no eval: a model file must never decide what code runs."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & {"pickle", "marshal", "shelve", "dill"}
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("pickle", "marshal", "shelve", "dill")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
