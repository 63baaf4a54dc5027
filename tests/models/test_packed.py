"""The file of packed weights: made by one, used by all, and whatever happened to it the logits are the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.files.cache_dir import cache_root
from llmkit.kernels.kernel_cache import CACHE_FOLDER
from llmkit.models import packed
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from tests.make_models import make_model
from tests.paths import REPO_ROOT


@pytest.fixture
def path(tmp_path: Path, temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model that is packed into a file of an empty cache."""
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    return make_model(tmp_path / "m.gguf", type="Q8_0", n_layer=2, n_vocab=200)


def logits(path: Path) -> tuple[str, np.ndarray]:
    """Where the weights were, and what they compute."""
    model = load_model(path)
    assert model.packed is not None
    with Context(model, ContextParams(n_ctx=32, n_threads=1)) as ctx:
        return model.packed.where, np.array(ctx.decode([Segment(ctx.new_sequence(), [1, 2, 3], "all")]))


def tiles() -> list[Path]:
    return sorted((cache_root() / "packed").glob("*.tiles"))


def empty(content: bytearray) -> None:
    del content[:]


def cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


def grow(content: bytearray) -> None:
    content += bytes(4096)


def spoil_header(content: bytearray) -> None:
    content[9] ^= 1


def zero_half(content: bytearray) -> None:
    """What a file system leaves of a file whose data had not reached the disk."""
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)


def other_layout(content: bytearray) -> None:
    """As if the tiles' layout had changed under the same version: nothing is where it was."""
    content[4096:] = content[4096:][::-1]
    packed._CHECKSUM.pack_into(content, packed._CHECKSUM_AT, packed._checksum(np.frombuffer(content, np.uint8), 1))


def one_bit(content: bytearray) -> None:
    """In the first tile, which is compared with nothing."""
    content[4096 + 5] ^= 1


def no_checksum(content: bytearray) -> None:
    """As releases before wrote it."""
    content[packed._CHECKSUM_AT : packed._CHECKSUM_AT + 8] = bytes(8)


@pytest.mark.parametrize("damage", [empty, cut, grow, spoil_header, zero_half, other_layout, one_bit, no_checksum])
def test_a_damaged_file_is_made_anew(path: Path, damage: Callable[[bytearray], None]) -> None:
    where, want = logits(path)
    assert where.startswith("mapped: ")
    (file,) = tiles()
    sound = file.read_bytes()
    content = bytearray(sound)
    damage(content)
    file.unlink()  # the one before is still mapped
    file.write_bytes(content)
    where, got = logits(path)
    assert (got == want).all()
    assert where.startswith("mapped: ")
    assert tiles()[0].read_bytes() == sound


def test_a_sound_file_is_not_touched(path: Path) -> None:
    logits(path)
    before = tiles()[0].stat()
    logits(path)
    after = tiles()[0].stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("n_threads", [-1, 0, 3])
def test_any_number_of_threads(path: Path, n_threads: int) -> None:
    for _ in range(2):  # packed, and then found
        packing = load_model(path, n_threads=n_threads).packed
        assert packing is not None
        assert packing.where.startswith("mapped: ")


def test_a_changed_model_has_a_file_of_its_own(path: Path) -> None:
    _, want = logits(path)
    other = make_model(path.with_name("new.gguf"), type="Q8_0", n_layer=2, n_vocab=200, seed=1)
    os.replace(other, path)
    _, got = logits(path)
    assert (got != want).any()
    assert len(tiles()) == 2


@pytest.mark.parametrize(
    "record", ["", "{", "[]", "[" * 10**5, '{"sha256": 3}', '{"identity": null, "sha256": "' + "0" * 64 + '"}']
)
def test_a_damaged_fingerprint_is_computed_again(path: Path, record: str) -> None:
    _, want = logits(path)
    (file,) = (cache_root() / "fingerprints").iterdir()
    file.write_text(record)
    _, got = logits(path)
    assert (got == want).all()
    assert len(tiles()) == 1


@pytest.mark.parametrize("name", ["", "packed", "locks"])
def test_a_file_in_the_place_of_a_folder(path: Path, temp_cache: Path, name: str) -> None:
    temp_cache.parent.mkdir(exist_ok=True)
    place = temp_cache / name if name else temp_cache
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    where, _ = logits(path)
    assert where.startswith("in memory: ")
    assert place.read_text() == "mine"


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, want = logits(path)
    tiles()[0].unlink()

    def full(descriptor: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_reserve", full)
    where, got = logits(path)
    assert "No space left" in where
    assert (got == want).all()
    assert not list((cache_root() / "packed").iterdir())


LOAD = """
import sys
from pathlib import Path
from llmkit.models import packed
from tests.models.test_packed import logits
packed.IN_MEMORY_BYTES = 0
if len(sys.argv) > 2:
    import time
    packed._pack_run = lambda *args: (Path(sys.argv[2]).touch(), time.sleep(100))
print(logits(Path(sys.argv[1]))[1].tobytes().hex())
"""


def start(*arguments: str | Path) -> "subprocess.Popen[str]":
    kernels = cache_root() / "kernels"
    kernels.parent.mkdir(exist_ok=True)
    if not kernels.exists():
        kernels.symlink_to(CACHE_FOLDER.parent)
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, *map(str, arguments)], cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True
    )


def test_killed_while_packing_and_then_two_at_once(path: Path, tmp_path: Path) -> None:
    """What the killed one left goes with the next packing, and neither of two disturbs the other."""
    victim = start(path, tmp_path / "packing")
    until = time.monotonic() + 60
    while not (tmp_path / "packing").exists() and time.monotonic() < until:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert len(list((cache_root() / "packed").glob(".tmp-*"))) == 1
    both = [start(path), start(path)]
    found = [process.communicate(timeout=100)[0].strip() for process in both]
    assert found[0] == found[1] == logits(path)[1].tobytes().hex()
    assert [file.name for file in (cache_root() / "packed").iterdir()] == [tiles()[0].name]
