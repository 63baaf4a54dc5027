"""A state file is there whole or not at all: disk full, no permission, two writers, killed at any time."""

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import OutputError
from llmkit.files.state_errors import StateDamagedError
from llmkit.files.state_file import StateFile, new_blocks, write_state
from llmkit.files.state_header import Header, KindRecord, SequenceRecord
from tests.paths import REPO_ROOT

N_BLOCKS, BLOCK_BYTES = 40, 16384


def write(path: Path, seed: int, *, n_blocks: int = N_BLOCKS, compress: bool = False) -> int:
    """One sequence that fills blocks of random bytes."""
    rng = np.random.default_rng(seed)
    n = 32 * n_blocks
    run = np.array([rng.integers(0, 99, n), np.arange(n), np.arange(n), np.arange(n)])
    kinds = [KindRecord(0, 1, BLOCK_BYTES, new_blocks(n_blocks))]
    sequences = [SequenceRecord(seed, (0,), [(0, 0, n)], has_logits=True)]
    header = Header({"seed": seed}, kinds, [run], sequences, 50, compress)
    blocks = [rng.integers(0, 9, BLOCK_BYTES).astype(np.uint8) for _ in range(n_blocks)]
    return write_state(path, header, [blocks], [rng.standard_normal(50).astype(np.float32)])


def check(path: Path) -> int:
    """The seed of the file, all of whose checksums are right."""
    with StateFile(path) as file:
        file.verify(2)
        return int(file.header.description["seed"])


def only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("compress", [False, True])
def test_blocks_come_back(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "a"
    assert write(path, 3, compress=compress) == path.stat().st_size
    with StateFile(path) as file:
        blocks = [file.decompress(0, b) if compress else b for b in file.stored(0)]
        rng = np.random.default_rng(3)
        rng.integers(0, 99, 32 * N_BLOCKS)
        for block in blocks:
            assert (block == rng.integers(0, 9, BLOCK_BYTES)).all()
        logits = file.logits(0)
        assert logits is not None
        assert (logits == rng.standard_normal(50).astype(np.float32)).all()
    assert int(blocks[0][0]) >= 0  # what was taken stays mapped
    assert only(tmp_path) == ["a"]


def test_blocks_that_do_not_become_smaller(tmp_path: Path) -> None:
    """They are stored as they are, beside those that do."""
    noise = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    blocks = [noise, np.zeros(4096, np.uint8), noise]
    header = Header({}, [KindRecord(0, 1, 4096, new_blocks(3))], [], [], compressed=True)
    write_state(tmp_path / "a", header, [blocks])
    with StateFile(tmp_path / "a") as file:
        file.verify()
        assert [block.size for block in file.stored(0)][::2] == [4096, 4096]
        for block, want in zip(file.stored(0), blocks, strict=True):
            assert (file.decompress(0, block) == want).all()


def test_an_empty_state(tmp_path: Path) -> None:
    for n_sequences in (0, 1):
        kinds = [KindRecord(0, 1, 64, new_blocks(0)), KindRecord(9, 1, 64, new_blocks(0))]
        header = Header({}, kinds, [], [SequenceRecord(5, (0, 0), [])] * n_sequences)
        write_state(tmp_path / "a", header, [[], []])
        with StateFile(tmp_path / "a") as file:
            file.verify()
            assert len(file.header.sequences) == n_sequences


def test_large_files_are_checked_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmkit.files.state_file._PARALLEL", 1)
    path = tmp_path / "a"
    write(path, 1)
    check(path)
    data = bytearray(path.read_bytes())
    data[-3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(StateDamagedError, match="checksum"):
        check(path)


@contextmanager
def disk_of(n_bytes: int) -> Iterator[None]:
    """No file may become larger: what a full disk looks like to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)


@pytest.mark.parametrize("room", [0, 1000, 5000, 100_000, N_BLOCKS * BLOCK_BYTES])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, room: int) -> None:
    path = tmp_path / "a"
    write(path, 1)
    with disk_of(room), pytest.raises(OutputError, match="cannot be written"):
        write(path, 2)
    assert check(path) == 1
    assert only(tmp_path) == ["a"]


def test_where_nothing_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, 1)
    path.chmod(stat.S_IRUSR)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (path, tmp_path, tmp_path / "no" / "folder", Path("/dev/null"), tmp_path / "link", tmp_path / "loop"):
        with pytest.raises(OutputError):
            write(place, 2)
    assert check(path) == 1
    assert only(tmp_path) == ["a", "link", "loop"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write(tmp_path / "link", 2)
    assert check(tmp_path / "a") == 2
    assert (tmp_path / "link").is_symlink()


_KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from tests.files.test_state_file import check, write

folder, n = Path(sys.argv[1]), int(sys.argv[2])
path = folder / "a"
random.seed(0)
write(path, 1)
interrupted = set()
for i in range(n):
    children = []
    for number in range(2):  # two writers at once
        child = os.fork()
        if child == 0:
            seed = 2 + 2 * i + number
            while True:
                write(path, seed)
        children.append(child)
    time.sleep(random.random() * 0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert check(path) in (1, *range(2, 4 + 2 * i))
    interrupted |= {p.name for p in folder.iterdir()} - {"a"}
    for name in interrupted:
        (folder / name).unlink(missing_ok=True)
print(check(path), len(interrupted))
"""


def test_killed_a_hundred_times(tmp_path: Path) -> None:
    """Two processes write to one name and are killed at random: what is there is whole, always."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), "100"],
        cwd=REPO_ROOT, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO_ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last, n_interrupted = map(int, done.stdout.split())
    assert last > 1, "no write was ever finished"
    assert n_interrupted > 10, "none was killed while it wrote"


def n_maps(path: Path) -> int:
    """How many maps of the file this process has; Linux only."""
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self is Linux's")
def test_maps_need_no_open_file_and_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, 1, n_blocks=1)
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for _ in range(50):
        with StateFile(path) as file:
            file.verify()
            kept.append(next(iter(file.stored(0))))
    del file
    assert len(os.listdir("/proc/self/fd")) == before
    assert n_maps(path) == 50
    del kept[10:]
    assert n_maps(path) == 10
    kept.clear()
    assert n_maps(path) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self is Linux's")
def test_a_map_outlives_the_name(tmp_path: Path) -> None:
    """Blocks in use are those that were loaded, whatever takes the file's place."""
    path = tmp_path / "a"
    write(path, 1)
    with StateFile(path) as file:
        blocks = list(file.stored(0))
    before = [block.copy() for block in blocks]
    write(path, 2)
    path.unlink()
    assert n_maps(path) == 1
    with pytest.raises(ValueError, match="read-only"):
        blocks[0][0] = 1
    assert all((a == b).all() for a, b in zip(blocks, before, strict=True))
