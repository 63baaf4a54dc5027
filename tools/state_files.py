"""`llmkit state info`, `verify`, `diff` and `ls`: looking at state files, without a model.

Owns the looks. Reading and comparing is llmkit/engine/state/info.py's and diff.py's.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError

from . import _options as options
from ._state_text import info_json, info_rows, plain

if TYPE_CHECKING:
    from llmkit.engine.state.info import StateInfo

EXIT_BAD = 2


def _file(help: str) -> typer.models.ArgumentInfo:
    found: typer.models.ArgumentInfo = typer.Argument(metavar="FILE", help=help, show_default=False)
    return found


def info_cli(file: Annotated[Path, _file("A state file.")], as_json: options.JsonOption = False) -> int:
    """Show what a state file says of itself: model, types, sequences, metadata. Only its header is checked."""
    from llmkit.engine.state.info import read_state_info

    info = read_state_info(file)
    if as_json:
        report.result_json(info_json(info))
    else:
        width = max(len(name) for name, _ in info_rows(info))
        report.result("\n".join(f"{name:<{width}}  {text}" for name, text in info_rows(info)))
    return 0


def verify_cli(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="State files.", show_default=False)],
    as_json: options.JsonOption = False,
) -> int:
    """Compare every checksum of state files; a line each. Exit code 2 if one is damaged or is no state file."""
    from llmkit.engine.state.info import verify_state
    from llmkit.files.state_errors import StateError

    rows = []
    for file in files:
        try:
            info = verify_state(file)
        except StateError as error:
            rows.append({"path": str(file), "ok": False, "error": type(error).__name__, "message": error.message})
        else:
            rows.append({"path": str(file), "ok": True, "n_bytes": info.n_bytes})
    if as_json:
        report.result_json(rows)
    else:
        for row in rows:
            report.result(f"{plain(row['path'])}: ok" if row["ok"] else f"{row['error']}: {row['message']}")
    return 0 if all(row["ok"] for row in rows) else EXIT_BAD


def diff_cli(
    first: Annotated[Path, _file("A state file.")],
    second: Annotated[Path, _file("Another.")],
    as_json: options.JsonOption = False,
) -> int:
    """Compare two states: model, types, tokens, and the bits of keys and values where the tokens are the same.

    Exit code 0: the same (compressed or not), 2: different.
    """
    from llmkit.engine.state.diff import diff_states

    found = diff_states(first, second)
    if as_json:
        report.result_json([{"what": d.what, "first": d.first, "second": d.second} for d in found])
    elif found:
        report.result_table(
            [tuple(map(plain, (d.what, d.first, d.second))) for d in found], ("what", plain(first), plain(second))
        )
    return EXIT_BAD if found else 0


def ls_cli(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder.")] = Path("."),
    as_json: options.JsonOption = False,
) -> int:
    """List the state files in a folder, the newest first; other files are passed over."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    found = sorted(_states(folder), key=lambda info: -Path(info.path).stat().st_mtime)
    if as_json:
        report.result_json([info_json(info) for info in found])
    elif found:
        report.result_table([_row(info) for info in found], ("file", "model", "sequences", "tokens", "size", "saved"))
    else:
        report.note(f"{folder} holds no state files")
    return 0


def _states(folder: Path) -> "list[StateInfo]":
    """What the state files in a folder say; damaged ones are named on stderr."""
    from llmkit.engine.state.info import read_state_info
    from llmkit.files.state_errors import NotAStateError, StateError

    found = []
    for path in folder.iterdir():
        try:
            found.append(read_state_info(path))
        except NotAStateError:
            continue
        except StateError as error:
            report.warning(f"{type(error).__name__}: {error.message}")
    return found


def _row(info: "StateInfo") -> tuple[str, ...]:
    saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(Path(info.path).stat().st_mtime))
    n_tokens = sum(info.n_tokens.values())
    size = f"{info.n_bytes / 1e6:.1f} MB" + (" compressed" if info.compressed else "")
    return plain(Path(info.path).name), plain(info.model), str(len(info.sequences)), str(n_tokens), size, saved
