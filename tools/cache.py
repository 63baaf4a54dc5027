"""`llmkit cache`: show what llmkit keeps for this user, and make room.

Owns how the contents are shown and the units of the bounds. What may go is decided in llmkit/files/cache_prune.py.
"""

import re
import time
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.cache_contents import FOLDERS, REMADE, Entry, scan
from llmkit.files.cache_dir import cache_root

from . import _options as options

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Action(StrEnum):
    """What to do with the cache."""

    PATH = "path"
    LIST = "list"
    PRUNE = "prune"
    CLEAR = "clear"


def cache_cli(
    action: Annotated[Action, typer.Argument(metavar="path|list|prune|clear", help="What to do.")],
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help=f"{', '.join(FOLDERS)}, or all. Without it list shows all, and prune and clear take what llmkit can "
            f"make again: {', '.join(REMADE)}.",
            show_default=False,
        ),
    ] = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="prune: keep at most SIZE bytes; 500M, 2G.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="prune: remove what was not used for AGE; 12h, 30d."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="prune, clear: only show what would be removed.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show what llmkit keeps in the user's cache, or remove some of it.

    prune removes what killed processes left, what belongs to models that are gone, and what is over the bounds, the
    longest unused first. clear removes everything in the folders. Both leave what llmkit did not make.
    """
    chosen = _folders(folders or [], action)
    max_bytes = None if max_size is None else int(_parse(max_size, _SIZES, "--max-size", "500M or 2G"))
    max_age_s = None if older_than is None else _parse(older_than, _TIMES, "--older-than", "12h or 30d")
    if action != Action.PRUNE and (max_size is not None or older_than is not None):
        raise UsageError("--max-size and --older-than belong to prune", "`llmkit cache prune --max-size 2G`")
    if action in (Action.PATH, Action.LIST) and dry_run:
        raise UsageError(f"--dry-run belongs to prune and clear; {action} removes nothing")
    if action == Action.PATH:
        _show_path(chosen, folders or [], as_json)
    elif action == Action.LIST:
        _show(scan() if not folders else [entry for entry in scan() if entry.folder in chosen], as_json)
    else:
        _remove(action, chosen, max_bytes, max_age_s, dry_run, as_json)


def _folders(names: list[str], action: Action) -> list[str]:
    wrong = [name for name in names if name not in FOLDERS and name != "all"]
    if wrong:
        raise UsageError(f"the cache has no folder {wrong[0]!r}", f"It has {', '.join(FOLDERS)}; or say all.")
    if "all" in names:
        return list(FOLDERS)
    return names or list(FOLDERS if action == Action.LIST else REMADE)


def _parse(text: str, units: dict[str, int], option: str, example: str) -> float:
    """A number with one of the units; decimal, as disks are sold."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgtshdw]?)B?", text.strip(), re.IGNORECASE)
    unit = {key.lower(): value for key, value in units.items()}.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{option} {text!r} is not understood", f"Give a number and a unit: {example}.")
    return float(found[1]) * unit


def _show_path(chosen: list[str], named: list[str], as_json: bool) -> None:
    paths = [cache_root() / name for name in chosen] if named else [cache_root()]
    if as_json:
        report.result_json([str(path) for path in paths])
    else:
        report.result("\n".join(map(str, paths)))


def _show(entries: list[Entry], as_json: bool) -> None:
    if as_json:
        report.result_json([_describe(entry) for entry in entries])
        return
    now = time.time()
    rows = [
        (
            entry.path.relative_to(cache_root()).as_posix(),
            _megabytes(entry.size),
            _age(now - entry.used),
            entry.state,
            _owner(entry),
        )
        for entry in entries
    ]
    if rows:
        report.result_table(rows, ("entry", "size", "unused for", "state", "belongs to"))
    for folder in dict.fromkeys(entry.folder for entry in entries):
        own = [entry.size for entry in entries if entry.folder == folder]
        report.note(f"{folder or 'others':<13} {len(own):>5} {_megabytes(sum(own)):>12}")
    report.note(f"{'all':<13} {len(entries):>5} {_megabytes(sum(entry.size for entry in entries)):>12}  {cache_root()}")


def _remove(
    action: Action, folders: list[str], max_bytes: int | None, max_age_s: float | None, dry_run: bool, as_json: bool
) -> None:
    from llmkit.files.cache_prune import Removal, choose_for_clear, choose_for_prune, remove_entries

    entries = scan()
    if action == Action.CLEAR:
        chosen = choose_for_clear(entries, folders)
    else:
        chosen = choose_for_prune(entries, folders, time.time(), max_bytes, max_age_s)
    done = Removal(chosen) if dry_run else remove_entries(chosen)
    if as_json:
        report.result_json(
            {
                "dry_run": dry_run,
                "removed": [_describe(entry) for entry in done.removed],
                "busy": [_describe(entry) for entry in done.busy],
                "freed": sum(entry.size for entry in done.removed),
            }
        )
        return
    for entry in done.removed:
        report.result(f"{_megabytes(entry.size):>12}  {entry.path}")
    for entry in done.busy:
        report.warning(f"left, another process is at work there: {entry.path}")
    verb = "would be freed" if dry_run else "freed"
    report.note(f"{len(done.removed)} entries, {_megabytes(sum(entry.size for entry in done.removed))} {verb}")


def _describe(entry: Entry) -> dict[str, Any]:
    """What --json says about an entry: bytes, and seconds since 1970; owner and state are null when there is none."""
    return {
        "folder": entry.folder or None,
        "path": str(entry.path),
        "size": entry.size,
        "used": round(entry.used, 3),
        "owner": _owner(entry) or None,
        "state": entry.state or None,
    }


def _owner(entry: Entry) -> str:
    """Only the kernels know which of their folders is this version's."""
    if entry.folder != "kernels" or entry.state:
        return entry.owner
    from llmkit.kernels.kernel_cache import CACHE_FOLDER

    with suppress(OSError):
        CACHE_FOLDER.rmdir()  # the import made it if it was not there; this fails when there is something in it
    return "this version" if entry.path.name == CACHE_FOLDER.name else "another version"


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


def _age(seconds: float) -> str:
    for unit, n in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= n:
            return f"{seconds / n:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
