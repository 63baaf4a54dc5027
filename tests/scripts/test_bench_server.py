"""scripts/bench_server beside a small server that answers at once: the bursts, the table, two servers in turns."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmkit.errors import UsageError
from scripts.bench import bench_server
from scripts.bench.bench_server import Row, percentile, row_of
from scripts.bench.server_client import Sample, ServerError, Target, text_of


class _Handler(BaseHTTPRequestHandler):
    """A token is a word; what was asked before is cached."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        server.asked.append((self.path, body))
        if self.path == "/tokenize":
            self._send([json.dumps({"tokens": [1] * 2 * len(body["content"].split())})])
            return
        if server.fails:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"busy")
            return
        words = body["prompt"].split()
        with server.lock:
            n_cached = max((_n_common(words, seen) for seen in server.seen), default=0)
            server.seen.append(words)
        native = self.path == "/completion"
        self._send(_native(body, words, n_cached) if native else _openai(body, words, n_cached), sse=True)

    def _send(self, parts: list[str], sse: bool = False) -> None:
        self.send_response(200)
        self.end_headers()
        for part in parts:
            self.wfile.write((f"data: {part}\n\n" if sse else part).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _n_common(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _native(body: Any, words: list[str], n_cached: int) -> list[str]:
    tokens: list[Any] = [{"content": "x", "tokens": [1], "stop": False} for _ in range(body["n_predict"])]
    timings = {"prompt_n": len(words) - n_cached, "cache_n": n_cached}
    progress = {"content": "", "tokens": [0], "stop": False, "prompt_progress": {}}
    return [json.dumps(e) for e in [None, progress, *tokens, {"content": "", "stop": True, "timings": timings}]]


def _openai(body: Any, words: list[str], n_cached: int) -> list[str]:
    tokens: list[Any] = [{"choices": [{"text": "x"}]} for _ in range(body["max_tokens"])]
    usage = {"prompt_tokens": len(words), "prompt_tokens_details": {"cached_tokens": n_cached}}
    end = {"choices": [{"text": "", "finish_reason": "length"}]}
    return [*(json.dumps(e) for e in [*tokens, end, {"choices": [], "usage": usage}]), "[DONE]"]


class Fake:
    def __init__(self) -> None:
        self.http: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.http.asked, self.http.seen, self.http.fails, self.http.lock = [], [], False, threading.Lock()
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def fakes() -> Iterator[list[Fake]]:
    found = [Fake(), Fake()]
    yield found
    for fake in found:
        fake.http.shutdown()
        fake.http.server_close()


def bench(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_server", *options])
    return bench_server.main()


@pytest.mark.parametrize("api", ["native", "openai"])
def test_two_servers_in_turns(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], api: str
) -> None:
    options = ("--port", str(fakes[0].port), "--against", fakes[1].url, "--api", api, "--parallel", "1,3", "--json")
    size = ("--prefix-tokens", "40", "--requests", "2", "--n-predict", "4", "--tails")
    assert bench(monkeypatch, *options, *size) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["server"], row["n_clients"], row["warm"]): row for row in found["rows"]}
    assert len(rows) == 8
    assert found["tails_s"] > 0
    ours = fakes[0].url.removeprefix("http://")
    assert rows[ours, 3, True]["n_requests"] == 6
    assert rows[ours, 1, False]["reuse"] == 0
    assert rows[ours, 3, True]["reuse"] > 0.4
    assert rows[ours, 3, True]["prompt_n"] < rows[ours, 3, False]["prompt_n"]
    prompts = [[body["prompt"] for path, body in fake.http.asked if "prompt" in body] for fake in fakes]
    assert set(prompts[1]) <= set(prompts[0])
    assert all(len(prompt.split()) >= 20 for prompt in prompts[1])


def test_the_table(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--port", str(fakes[0].port), "--against", fakes[1].url, "--parallel", "1,2", "--requests", "1")
    assert bench(monkeypatch, *options, "--prefix-tokens", "10", "--n-predict", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["server", "clients", "prefix"]
    assert len({line.index("|") for line in lines[:9]}) == 1
    assert any(line.startswith("warm: first token of 2 clients") for line in lines)
    assert sum(line.startswith("decoding, ") for line in lines) == 2


def test_a_server_that_refuses_is_an_error(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    fakes[0].http.fails = True
    with pytest.raises(ServerError, match=r"answered 503: b'busy'"):
        bench(monkeypatch, "--port", str(fakes[0].port), "--parallel", "2", "--prefix-tokens", "5")
    with pytest.raises(ServerError, match="cannot be reached"):
        Target("http://127.0.0.1:1").complete("x", 1)
    with pytest.raises(UsageError):
        bench(monkeypatch, "--parallel", "0,2")


def test_a_prefix_has_the_size_that_is_asked_for(fakes: list[Fake]) -> None:
    assert len(text_of(Target(fakes[0].url), 60, 1).split()) == 30


def test_percentiles() -> None:
    assert [percentile(range(1, 101), p) for p in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert (percentile([3.0], 50), percentile([], 50), percentile([1, 2, 3], 50)) == (3.0, 0.0, 2)


def test_what_bursts_come_to() -> None:
    """Decoding counts from when all have their first token."""
    a = Sample(first_s=1.0, end_s=5.0, began=0.0, gaps_s=[1.0, 1.0, 1.0, 1.0], n_tokens=5, prompt_n=10, cache_n=0)
    b = Sample(first_s=2.5, end_s=4.5, began=0.0, gaps_s=[1.0, 1.0], n_tokens=3, prompt_n=2, cache_n=8)
    row = row_of("s", 2, True, [[a, b]])
    assert row == Row("s", 2, True, 2, 1.0, 2.5, 2.5, 2.5, 1.0, 1.0, 1.0, 8 / 5, 5 / 2.5, 12, 8 / 20)


def test_a_drawing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = Row("s", 1, True, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 9.0, 9.0, 1, 0.5)
    bench_server.plot([row], tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 1000
