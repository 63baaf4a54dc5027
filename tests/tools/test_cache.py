"""`llmkit cache`: what it shows, what it removes, and what it leaves."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmkit.files.cache_contents import PACKED_HEADER, PACKED_MAGIC
from llmkit.files.cache_dir import locked
from llmkit.models.fingerprint import fingerprint
from tests.paths import REPO_ROOT
from tests.tools.in_process import run_llmkit

DAY = 86400


def put(path: Path, data: bytes = b"x", age_s: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def packed(cache: Path, digest: str, n_bytes: int = 100, age_s: float = 0) -> Path:
    header = PACKED_HEADER.pack(PACKED_MAGIC, 1, n_bytes, 1)
    return put(cache / "packed" / f"{digest}-1.tiles", header.ljust(n_bytes, b"\0"), age_s)


def kernels(cache: Path, name: str, age_s: float) -> Path:
    folder = put(cache / "kernels" / name / "index.nbi", bytes(1000), age_s).parent
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def listed(*folders: str) -> dict[str, dict[str, Any]]:
    done = run_llmkit("cache", "list", "--json", *folders)
    assert done.returncode == 0, done.stderr
    return {Path(entry["path"]).name: entry for entry in json.loads(done.stdout)}


def removed(*args: str) -> list[str]:
    done = run_llmkit("cache", *args, "--json")
    assert done.returncode == 0, done.stderr
    return [Path(entry["path"]).name for entry in json.loads(done.stdout)["removed"]]


def test_path(temp_cache: Path) -> None:
    assert run_llmkit("cache", "path").stdout == f"{temp_cache}\n"
    assert run_llmkit("cache", "path", "packed").stdout == f"{temp_cache}/packed\n"
    assert not temp_cache.exists()


def test_an_empty_cache_stays_absent(temp_cache: Path) -> None:
    done = run_llmkit("cache", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert removed("prune") == removed("clear", "all") == []
    assert not temp_cache.exists()


def test_what_belongs_to_what(temp_cache: Path, tmp_path: Path) -> None:
    """Whole and split models by their remembered hashes; changed or deleted files are gone."""
    here, gone = put(tmp_path / "here.gguf", b"here"), put(tmp_path / "gone.gguf", b"gone")
    parts = [put(tmp_path / f"split-0000{n}-of-00002.gguf", bytes([n])) for n in (1, 2)]
    digests = [fingerprint([here]), fingerprint([gone]), fingerprint(parts), 64 * "0"]
    gone.unlink()
    files = [packed(temp_cache, digest) for digest in digests]
    found = [listed("packed")[file.name] for file in files]
    assert [entry["owner"] for entry in found] == [str(here), str(gone), str(tmp_path / "split"), None]
    assert [entry["state"] for entry in found] == [None, "model gone", None, None]
    assert {entry["size"] for entry in found} == {100}
    assert sorted(entry["owner"] for entry in listed("fingerprints").values() if entry["state"]) == [str(gone)]

    put(parts[1], b"changed")
    assert listed()[files[2].name]["state"] == "model gone"
    left = {str(gone), str(parts[1])}
    assert len(removed("prune")) == 2 + len(left)
    assert [file.exists() for file in files] == [True, False, False, True]


def test_two_files_with_one_hash(temp_cache: Path, tmp_path: Path) -> None:
    one, two = put(tmp_path / "1.gguf", b"same"), put(tmp_path / "2.gguf", b"same")
    assert fingerprint([one]) == fingerprint([two]) == hashlib.sha256(b"same").hexdigest()
    file = packed(temp_cache, hashlib.sha256(b"same").hexdigest())
    for path in (one, two):
        path.unlink()
        assert (listed()[file.name]["state"] is None) == two.exists()


def test_foreign_and_damaged_entries_are_shown_and_left(temp_cache: Path, tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "precious")
    cut = packed(temp_cache, 64 * "1", 100, 99 * DAY)
    cut.write_bytes(cut.read_bytes()[:50])
    bad = put(temp_cache / "fingerprints" / f"{32 * 'a'}.json", b"[1]")
    deep = put(temp_cache / "fingerprints" / f"{32 * 'b'}.json", b"[" * 10**5)
    foreign = [
        put(temp_cache / "notes.txt", age_s=99 * DAY),
        put(temp_cache / "packed" / "mine.bin", age_s=99 * DAY),
        put(temp_cache / "models" / "loose.gguf", age_s=99 * DAY),
    ]
    (temp_cache / "kernels").mkdir()
    link = temp_cache / "kernels" / (16 * "b")
    link.symlink_to(outside.parent)
    states = {name: entry["state"] for name, entry in listed().items()}
    assert states == {path.name: "foreign" for path in [*foreign, link]} | dict.fromkeys(
        (cut.name, bad.name, deep.name), "damaged"
    )
    assert removed("prune", "all", "--max-size", "0", "--older-than", "1d") == []
    assert sorted(removed("clear", "all")) == sorted([cut.name, bad.name, deep.name])
    assert all(path.exists() for path in [*foreign, link, outside])


def test_the_bounds_of_prune(temp_cache: Path) -> None:
    """The longest unused go first, and no more of them than needed; models only when they are named."""
    names = [16 * digit for digit in "3102"]  # in the order of their age, which is not that of their names
    for n, name in enumerate(names):
        kernels(temp_cache, name, (10 - n) * DAY)
    model = put(temp_cache / "models" / "m" / "m.gguf", bytes(5000), 99 * DAY)
    os.utime(model.parent, (1, 1))
    assert removed("prune", "--older-than", "8.5d", "--dry-run") == names[:2]
    assert removed("prune", "--max-size", "3KB", "--dry-run") == names[:1]
    assert removed("prune", "--max-size", "2999", "--dry-run") == names[:2]
    assert removed("prune", "models", "--max-size", "5k", "--dry-run") == []
    assert removed("prune", "models", "--older-than", "1w", "--dry-run") == ["m"]
    assert len(listed()) == 5
    assert removed("prune", "--older-than", "8.5d", "--max-size", "1K") == names[:3]
    assert set(listed()) == {names[3], "m"}
    assert removed("prune") == []
    assert removed("clear") == names[3:]
    assert removed("clear", "models") == ["m"]
    assert list((temp_cache / "models").iterdir()) == list((temp_cache / "kernels").iterdir()) == []


def test_what_killed_processes_left(temp_cache: Path) -> None:
    left = [put(temp_cache / "packed" / ".tmp-abc"), put(temp_cache / "kernels" / ".tmp-def" / "x").parent]
    put(temp_cache / "models" / "m" / ".partial" / "m.gguf")
    assert {entry["state"] for entry in listed().values()} == {"left over"}
    assert sorted(removed("prune")) == sorted(path.name for path in left)
    assert removed("prune", "models") == ["m"]


def test_where_somebody_is_at_work_nothing_is_removed(temp_cache: Path) -> None:
    file, model = packed(temp_cache, 64 * "1"), put(temp_cache / "models" / "m" / "m.gguf")
    with locked("packed"), locked("model-m"):
        done = run_llmkit("cache", "clear", "packed", "models", "tokenizers")
        assert done.returncode == 0
        assert done.stdout == ""
        assert done.stderr.count("another process is at work there") == 2
    assert file.exists()
    assert model.exists()
    assert len(removed("clear", "packed", "models")) == 2


def test_a_mapped_file_stays_with_its_process(temp_cache: Path) -> None:
    file = packed(temp_cache, 64 * "1", 8192)
    code = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); "
    code += "print(1, flush=True); input(); print(m[:8])"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        assert removed("clear") == [file.name]
        assert other.communicate("\n", timeout=30)[0] == f"{PACKED_MAGIC!r}\n"


def test_two_at_once(temp_cache: Path) -> None:
    """Each entry is removed by one of them, and neither fails."""
    for n in range(300):
        put(temp_cache / "tokenizers" / f"{n}.merges")
        kernels(temp_cache, f"{n:016x}", 0)
    command = [sys.executable, "-m", "llmkit", "cache", "clear", "kernels", "tokenizers"]
    both = [
        subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert sum(len(out.splitlines()) for out, _ in ends) == 600


def test_a_cache_that_cannot_be_written(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(temp_cache / "tokenizers" / "a.merges")

    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    done = run_llmkit("cache", "clear")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot remove {file}: Read-only file system\nhint: ")
    assert run_llmkit("cache", "list").returncode == 0


def test_the_table(temp_cache: Path) -> None:
    kernels(temp_cache, 16 * "0", 3 * DAY)
    done = run_llmkit("cache", "list")
    row = done.stdout.splitlines()[-1].split()
    assert row[:2] + row[3:] == ["kernels/" + 16 * "0", "0.0", "3d", "another", "version"]
    assert done.stderr.splitlines()[-1].split() == ["all", "1", "0.0", "MB", str(temp_cache)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nonsense"], "the cache has no folder 'nonsense'"),
        (["list", "--max-size", "1G"], "--max-size and --older-than belong to prune"),
        (["clear", "--older-than", "1d"], "--max-size and --older-than belong to prune"),
        (["list", "--dry-run"], "--dry-run belongs to prune and clear"),
        (["prune", "--max-size", "much"], "--max-size 'much' is not understood"),
        (["prune", "--max-size", "3d"], "--max-size '3d' is not understood"),
        (["prune", "--older-than", "30"], "--older-than '30' is not understood"),
    ],
)
def test_misuse(temp_cache: Path, arguments: list[str], words: str) -> None:
    done = run_llmkit("cache", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {words}")
