"""What makes an installed llmkit complete."""

import os
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import llmkit
from llmkit import __main__, cli
from tests.paths import REPO_ROOT

PROJECT = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_command_is_installed() -> None:
    (found,) = entry_points(group="console_scripts", name="llmkit")
    assert found.load() is __main__.run


def test_tools_are_part_of_the_package() -> None:
    import llmkit.tools

    assert llmkit.tools.__file__ == str(REPO_ROOT / "tools" / "__init__.py")


@pytest.mark.parametrize("command", cli.COMMANDS.values(), ids=list(cli.COMMANDS))
def test_a_command_is_where_the_table_says(command: cli.Command) -> None:
    assert command.module.startswith("llmkit.tools.")
    source = (REPO_ROOT / "tools" / f"{command.module.rpartition('.')[2]}.py").read_text(encoding="utf-8")
    assert f"\ndef {command.attribute}(" in source


def test_every_folder_is_a_package() -> None:
    """A folder without __init__.py works in the repository and is missing from what pip installs."""
    folders = {path.parent for path in (REPO_ROOT / "llmkit").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_licence_and_types() -> None:
    assert (REPO_ROOT / "LICENSE").read_text().startswith("MIT License")
    assert "llmkit authors" in (REPO_ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "MIT"
    assert (Path(llmkit.__file__).parent / "py.typed").exists()


def test_every_dependency_is_bounded() -> None:
    """A release that does not exist yet must not break an installation of this one."""
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.search(r">=[\d.]+,<[\d.]+$", requirement), requirement


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (REPO_ROOT / "scripts").iterdir() if not path.suffix and path.is_file())
)
def test_scripts_can_be_run(name: str) -> None:
    assert os.access(REPO_ROOT / "scripts" / name, os.X_OK)


def test_ci_runs_the_tests() -> None:
    assert "scripts/test" in (REPO_ROOT / ".ci" / "run").read_text()
