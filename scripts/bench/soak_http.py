"""A soak's server as its users have it: `llmkit serve` in a process of its own, spoken to over HTTP."""

from __future__ import annotations

import http.client
import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llmkit.errors import LlmkitError
from llmkit.tokenizer.load import load_tokenizer
from scripts.bench.soak_engine import N_CTX_SLOT
from scripts.bench.soak_loads import WAIT_S, Asked, resident_mb

START_S = 240.0
KEYS = ("soak-key-0", "soak-key-1", "soak-key-2")


class ServerProcess:
    """A server with three keys; the clients of it, each request in a thread and on a connection of its own."""

    def __init__(self, path: Path, gguf: Any, n_vocab: int, n_slots: int, n_cells: int) -> None:
        command = [sys.executable, "-m", "llmkit", "serve", "-m", str(path), "--port", "0", "--metrics"]
        command += ["-np", str(n_slots), "-c", str(n_cells), "--kv-unified-per-slot", str(min(N_CTX_SLOT, n_cells))]
        command += ["-kvu", "--queue", str(8 * n_slots), "--api-key", ",".join(KEYS)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._address, self._listening = ("", 0), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._ended = queue.SimpleQueue[Asked]()
        self.n_vocab, self.n_open = n_vocab, 0
        self.eog_ids = load_tokenizer(gguf).eog_ids

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:  # to the end, so that the server never waits for a reader
            if found := re.search(r"listening at http://([^:/\s]+):(\d+)", line):
                self._address = found[1], int(found[2])
                self._listening.set()

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            raise
        return self

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        self._listening.wait(START_S)
        while self._get("/health")[0] != 200:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise LlmkitError("the server did not get ready")
            time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._process.kill()

    # -- requests -------------------------------------------------------------------------------------------------

    def ask(self, asked: Asked, key: int = 0, cached: bool = True) -> Callable[[], None]:
        """Sends a request; gives what cancels it by closing its connection."""
        body = {
            "prompt": asked.prompt, "n_predict": asked.n_predict, "temperature": 0, "ignore_eos": True, "n_probs": 1,
            "cache_prompt": cached,
        }  # fmt: skip
        connection = http.client.HTTPConnection(*self._address, timeout=WAIT_S)
        connection.connect()
        cancelled = threading.Event()

        def cancel() -> None:
            cancelled.set()
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(2)

        def run() -> None:
            try:
                connection.request("POST", "/completion", json.dumps(body), self._headers(key))
                response = connection.getresponse()
                answer = json.loads(response.read())
                found = answer.get("completion_probabilities", []) if response.status == 200 else []
                asked.tokens = [(entry["id"], entry["logprob"]) for entry in found]
                asked.outcome = "finished" if response.status == 200 else f"failed: {response.status} {answer}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                asked.outcome = "cancelled" if cancelled.is_set() else f"failed: {error!r}"
            finally:
                connection.close()
                self._ended.put(asked)

        self.n_open += 1
        threading.Thread(target=run, daemon=True).start()
        return cancel

    def over(self) -> Asked:
        """The next that ends."""
        asked = self._ended.get(timeout=WAIT_S)
        self.n_open -= 1
        return asked

    def _headers(self, key: int) -> dict[str, str]:
        return {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[key]}"}

    def _get(self, path: str, key: int = 0, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=WAIT_S)
        try:
            connection.request(method, path, headers=self._headers(key))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    # -- questions ------------------------------------------------------------------------------------------------

    def _metric(self, name: str, labels: str = "") -> float:
        """The sum of a metric's samples with these labels."""
        text = self._get("/metrics")[1].decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*{labels}[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if not found:
            raise LlmkitError(f"the server has no metric {name}")
        return sum(map(float, found))

    def counts(self) -> dict[str, int]:
        """What was counted since the start."""
        names = {
            "tokens_asked": "prefix_tokens_asked", "tokens_hit": "prefix_tokens_hit", "n_evicted": "prefix_evictions",
            "n_parked": "parks", "n_cancelled": "requests_cancelled",
        }  # fmt: skip
        return {ours: int(self._metric(f"llmkit:{name}_total")) for ours, name in names.items()}

    def held_mb(self) -> float:
        """Memory of the server's process but for the cells."""
        return resident_mb(self._process.pid) - self._metric("llmkit:memory_bytes", 'state="peak"') / 1e6

    def lost(self) -> int:
        """Cells that nobody gives back when all is through and the cache is empty, and slots that are busy."""
        for _ in range(600):
            if not (n_busy := int(self._metric("llamacpp:requests_processing"))):
                break
            time.sleep(0.1)
        for key in range(len(KEYS)):
            while entries := json.loads(self._get("/cache", key)[1])["prefixes"]:
                self._get(f"/cache/{entries[0]['id']}", key, "DELETE")
        return n_busy + int(self._metric("llmkit:memory_cells", 'state="used"'))
