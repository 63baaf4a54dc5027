"""A real server: `llmkit serve` in a process of its own, at a free port, with a tiny model."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.paths import REPO_ROOT

START_S = 240.0


class Server:
    """`with Server(model, "--metrics") as server: server.client.get("/health")`. Ready when the block begins."""

    def __init__(self, model: Path, *options: str, ready: bool = True, verify: Any = True) -> None:
        command = [sys.executable, "-m", "llmkit", "serve", "-m", str(model), "--port", "0", "-t", "2", *options]
        self.process = subprocess.Popen(
            command, cwd=REPO_ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready, self._verify = ready, verify

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if "listening at " in line:
                self._listening.set()
        self._listening.set()

    @property
    def said(self) -> str:
        """All of stderr up to now."""
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """Where it listens, as it says itself."""
        found = re.search(r"listening at (?:\S+\.sock, )?(https?://\S+?)(,|$)", self.said, re.MULTILINE)
        assert found, self.said
        return found[1]

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    def __enter__(self) -> Self:
        try:
            assert self._listening.wait(START_S), "it does not listen"
            self.client = httpx.Client(base_url=self.url, timeout=120, verify=self._verify)
            if self._ready:
                self.wait_until_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def wait_until_ready(self) -> None:
        """Asks for its health."""
        for _ in range(int(START_S / 0.05)):
            assert self.process.poll() is None, self.said
            if self.client.get("/health").status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError("it never got ready")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            finally:
                self.process.kill()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def post(self, path: str, body: Any, **more: Any) -> Any:
        """The JSON of an answer that is one."""
        response = self.client.post(path, json=body, **more)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, body: Any, **more: Any) -> list[Any]:
        """The events of a stream."""
        with self.client.stream("POST", path, json={**body, "stream": True}, **more) as response:
            assert response.status_code == 200
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def metric(self, name: str, **more: Any) -> float:
        """A sample of /metrics without labels."""
        text = self.client.get("/metrics", **more).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not there"
        return float(found[1])

    def until(self, condition: Any) -> None:
        """Waits for it to come to that."""
        for _ in range(600):
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError("it never came to that")

    def until_idle(self) -> None:
        """No slot works and nothing waits."""
        self.until(lambda: self.metric("llamacpp:requests_processing") + self.metric("llamacpp:requests_deferred") == 0)
