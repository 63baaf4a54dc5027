"""`llmkit pull URL` against a web server of the test's own."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.files import http_fetch
from llmkit.files.models_table import resolve_model
from llmkit.files.url_source import url_path
from tests.files.raw_gguf import gguf, tensor
from tests.files.test_gguf_split import split
from tests.files.web_server import Web, serve_web
from tests.make_models import TinyModel
from tests.paths import REPO_ROOT
from tests.tools.in_process import Finished, run_llmkit

DATA = gguf(tensors=[tensor(dims=(250_000,))], n_data=1_000_000)


@pytest.fixture
def web(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(http_fetch, "PAUSE_S", 0.0)
    with serve_web() as server:
        server.files["/a/m.gguf"] = DATA
        yield server


def refused(done: Finished) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.partition("error: ")[2]


def kept(cache: Path) -> set[str]:
    """The names of all files of models."""
    return {path.name for path in (cache / "models").rglob("*") if path.is_file()}


def test_pull_and_use(web: Web) -> None:
    url = web.base + "/a/m.gguf?download=true&secret=1"
    done = run_llmkit("pull", url, "--sha256", hashlib.sha256(DATA).hexdigest().upper())
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rstrip("\n"))
    assert path.read_bytes() == DATA
    assert "secret" not in done.stderr
    assert resolve_model(url) == path == url_path(url)
    assert [file.name for file in path.parent.iterdir()] == ["m.gguf"]
    assert web.ranges() == [""]

    again = run_llmkit("pull", url, "--json")
    assert json.loads(again.stdout) == {"name": url, "path": str(path), "files": [str(path)], "size": len(DATA)}
    assert len(web.seen) == 1
    assert run_llmkit("pull", "--rm", url).returncode == 0
    assert not path.parent.exists()
    assert "is not in the cache" in refused(run_llmkit("pull", "--rm", url))
    assert "has not been fetched yet" in refused(run_llmkit("inspect", "-m", url))


def test_it_goes_on_when_the_connection_ends(web: Web) -> None:
    """More often than it would try without getting any further."""
    web.cut_after, web.n_cuts = 300_000, 3
    done = run_llmkit("pull", "-q", web.base + "/a/m.gguf")
    assert Path(done.stdout.strip()).read_bytes() == DATA
    assert web.ranges() == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert [headers.get("if-range") for _, headers in web.seen] == [None, '"1"', '"1"', '"1"']


@pytest.mark.parametrize(("etag", "ranges"), [('"1"', ["", "bytes=300000-"]), ("", ["", ""]), ('W/"1"', ["", ""])])
def test_without_a_strong_etag_it_begins_anew(web: Web, etag: str, ranges: list[str]) -> None:
    web.etag, web.cut_after, web.n_cuts = etag, 300_000, 1
    done = run_llmkit("pull", web.base + "/a/m.gguf")
    assert Path(done.stdout.strip()).read_bytes() == DATA
    assert web.ranges() == ranges


@pytest.mark.parametrize("fault", ["", "ignores_ranges", "ignores_if_range"])
def test_a_file_that_changed_meanwhile(web: Web, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """No mixture of two files, however the server takes a condition."""
    url = web.base + "/a/m.gguf"
    web.cut_after, web.n_cuts = 300_000, 1
    with monkeypatch.context() as patch:
        patch.setattr(http_fetch, "TRIES", 1)
        assert "the connection ended after 300000 of" in refused(run_llmkit("pull", url))
    web.files["/a/m.gguf"] = other = DATA[:1000] + bytes([7]) * (len(DATA) - 1000)
    web.etag = '"2"'
    if fault:
        setattr(web, fault, True)
    done = run_llmkit("pull", url)
    assert Path(done.stdout.strip()).read_bytes() == other
    assert web.ranges()[:2] == ["", "bytes=300000-"]


def test_after_a_kill_it_goes_on(web: Web, temp_cache: Path) -> None:
    web.files["/a/m.gguf"] = big = gguf(tensors=[tensor(dims=(2_500_000,))], n_data=10_000_000)
    web.cut_after, web.n_cuts = 6_000_000, 99
    code = "from llmkit.files import http_fetch; http_fetch.PAUSE_S = 99; from llmkit.cli import main; main()"
    command = [sys.executable, "-c", code, "pull", web.base + "/a/m.gguf"]
    with subprocess.Popen(command, cwd=REPO_ROOT, env={**os.environ, "LLMKIT_CACHE": str(temp_cache)}) as process:
        partial = url_path(web.base + "/a/m.gguf").parent / ".partial" / "m.gguf"
        until = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size == 6_000_000) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    web.n_cuts = 0
    done = run_llmkit("pull", web.base + "/a/m.gguf")
    assert Path(done.stdout.strip()).read_bytes() == big
    assert web.ranges() == ["", "bytes=6000000-"]
    assert kept(temp_cache) == {"m.gguf"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {}, b"<!DOCTYPE html><html>log in</html>"), "is no GGUF: it is an HTML page"),
        ((200, {}, b""), "is empty"),
        ((200, {}, DATA[:-1]), "what was fetched is no sound GGUF"),
        ((403, {}, b""), "the server says 403"),
        ((404, {}, b""), "the server says 404"),
        ((503, {}, b""), "the server says 503"),
        ((302, {"Location": "ftp://h/m.gguf"}, b""), "redirects to ftp://h/m.gguf, which is not followed"),
    ],
)
def test_what_is_no_model_does_not_appear(
    web: Web, temp_cache: Path, answer: tuple[int, dict[str, str], bytes], words: str
) -> None:
    web.answers["/x.gguf"] = answer
    assert words in refused(run_llmkit("pull", web.base + "/x.gguf"))
    assert not url_path(web.base + "/x.gguf").exists()


def test_a_wrong_hash(web: Web, temp_cache: Path) -> None:
    assert "has SHA-256" in refused(run_llmkit("pull", web.base + "/a/m.gguf", "--sha256", "0" * 64))
    assert kept(temp_cache) == set()


def test_a_redirect(web: Web) -> None:
    web.answers["/latest"] = (302, {"Location": web.base + "/a/m.gguf"}, b"")
    done = run_llmkit("pull", web.base + "/latest")
    assert Path(done.stdout.strip()).name == "latest.gguf"
    assert Path(done.stdout.strip()).read_bytes() == DATA


def test_no_network(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fetch, "PAUSE_S", 0.0)
    assert "cannot fetch http://127.0.0.1:1/m.gguf: Connection refused" in refused(
        run_llmkit("pull", "http://127.0.0.1:1/m.gguf")
    )


def test_no_room(web: Web, temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fetch, "SPARE_BYTES", 1 << 60)
    assert "not enough room" in refused(run_llmkit("pull", web.base + "/a/m.gguf"))


def test_a_split_model(web: Web, temp_cache: Path, tmp_path: Path) -> None:
    """The address of the first part fetches all, which appear together or not at all."""
    parts = split(tmp_path, TinyModel())
    for part in parts[:-1]:
        web.files[f"/s/{part.name}"] = part.read_bytes()
    url = f"{web.base}/s/{parts[0].name}"
    assert "404" in refused(run_llmkit("pull", url))
    assert not url_path(url).exists()
    web.files[f"/s/{parts[-1].name}"] = parts[-1].read_bytes()
    done = run_llmkit("pull", url)
    assert done.returncode == 0, done.stderr
    assert kept(temp_cache) == {part.name for part in parts}
    assert len(web.seen) == len(parts) + 1  # those that had come were not fetched again
    assert run_llmkit("run", "-m", url, "--ids", "1,2", "-n", "1", "--temp", "0").returncode == 0
    assert "is part 2 of" in refused(run_llmkit("pull", f"{web.base}/s/{parts[1].name}"))
    assert run_llmkit("pull", "--rm", url).returncode == 0
    assert kept(temp_cache) == set()


def test_two_at_once(web: Web, temp_cache: Path) -> None:
    command = [sys.executable, "-m", "llmkit", "pull", web.base + "/a/m.gguf"]
    both = [subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate(timeout=60)[0] for process in both}) == 1
    assert [process.returncode for process in both] == [0, 0]
    assert len(web.seen) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["https://"], "is no address of a file"),
        (["http://me:secret@h/x.gguf"], "an address with a user name or password"),
        (["http://h/x.gguf", "--sha256", "12"], "--sha256 takes 64 hexadecimal digits"),
        (["smollm2-135m", "--sha256", "0" * 64], "--sha256 goes with the address of a file"),
        (["http://h/x-00001-of-00002.gguf", "--sha256", "0" * 64], "--sha256 goes with one file"),
    ],
)
def test_misuse(temp_cache: Path, arguments: list[str], words: str) -> None:
    assert words in refused(run_llmkit("pull", *arguments))
