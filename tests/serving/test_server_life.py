"""A server's beginning and end: slots that outlive it, draining, keys, TLS, sockets, what stops it from starting."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.make_models import make_model
from tests.serving.server_process import Server
from tests.tools.in_process import run_llmkit

GREEDY = {"temperature": 0, "ignore_eos": True}
LONG = "a story of a river and of all that it carries " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served") / "tiny.gguf", tokenizer="bpe", n_ctx_train=2048)


def ask(prompt: Any, n: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": n, **GREEDY, **more}


def test_a_slot_outlives_its_server(model: Path, tmp_path: Path) -> None:
    """Generated, saved, killed; restored, its next request reuses all of it and says what it would have said."""
    options = ("-c", "1024", "-np", "2", "-kvu", "--metrics", "--slot-save-path", str(tmp_path))
    with Server(model, *options) as server:
        first = server.post("/completion", ask(LONG, 16, id_slot=1, return_tokens=True, n_probs=1))
        saved = server.post("/slots/1?action=save", {"filename": "session.bin"})
        assert saved["n_saved"] == first["tokens_evaluated"] + 15
        assert saved["n_written"] == os.path.getsize(tmp_path / "session.bin")
        ids = server.post("/tokenize", {"content": LONG})["tokens"]
        more = [*ids, *first["tokens"]]
        going_on = server.post("/completion", ask(more, 8, return_tokens=True, n_probs=1))
        (tmp_path / "damaged").write_bytes((tmp_path / "session.bin").read_bytes()[:-4096])
        server.process.kill()
        server.process.wait()
    with Server(model, *options) as server:
        for name in ("damaged", "missing"):
            response = server.client.post("/slots/0?action=restore", json={"filename": name})
            assert response.status_code == 400, response.text
        restored = server.post("/slots/0?action=restore", {"filename": "session.bin"})
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again = server.post("/completion", ask(more, 8, return_tokens=True, n_probs=1))
        assert again["timings"]["cache_n"] == saved["n_saved"]
        assert again["timings"]["prompt_n"] == 1
        assert again["tokens"] == going_on["tokens"]
        assert again["completion_probabilities"] == going_on["completion_probabilities"]
        # In llama.cpp's form, and back.
        used = again["id_slot"]
        server.post(f"/slots/{used}?action=save", {"filename": "session.ggsq", "format": "ggsq"})
        assert (tmp_path / "session.ggsq").read_bytes()[:4] == b"qsgg"
        for prefix in server.client.get("/cache").json()["prefixes"]:
            server.client.delete(f"/cache/{prefix['id']}")
        foreign = server.post("/slots/0?action=restore", {"filename": "session.ggsq"})
        assert foreign["n_restored"] > saved["n_saved"]
        from_theirs = server.post("/completion", ask(more, 8, return_tokens=True, n_probs=1))
        assert from_theirs["timings"]["prompt_n"] == 1  # the last token of a prompt is always computed
        assert from_theirs["completion_probabilities"] == going_on["completion_probabilities"]
        no_such = {"filename": "x", "format": "gguf"}
        assert server.client.post(f"/slots/{used}?action=save", json=no_such).status_code == 400
        # Saved again without any request in between, then erased.
        server.post("/slots/1?action=restore", {"filename": "session.bin"})
        assert server.post("/slots/1?action=save", {"filename": "copy"})["n_saved"] == saved["n_saved"]
        assert server.post("/slots/1?action=erase", {})["n_erased"] == saved["n_saved"]
        assert server.client.post("/slots/1?action=save", json={"filename": "copy"}).status_code == 400
        assert server.post("/completion", ask(LONG, 1))["timings"]["prompt_n"] > 0
        listed = server.client.get("/cache").json()["prefixes"]
        pinned = server.post("/cache/pin", {"id": listed[0]["id"]})
        assert pinned["pinned"] is True
        assert server.client.delete(f"/cache/{listed[0]['id']}").status_code == 200
        assert server.end(signal.SIGINT) == 130


def test_a_stop_finishes_what_runs(model: Path) -> None:
    with Server(model, "-c", "2048", "--drain-timeout", "60") as server:
        answers: list[Any] = []

        def stream() -> None:
            answers.extend(server.stream("/completion", ask("long", 800)))

        thread = threading.Thread(target=stream)
        thread.start()
        server.until(lambda: any(slot["is_processing"] for slot in server.client.get("/slots").json()))
        assert server.end() == 0
        thread.join()
        assert answers[-1]["stop"] is True
        assert answers[-1]["tokens_predicted"] == 800
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", trust_env=False)


def test_a_stop_does_not_wait_for_ever(model: Path) -> None:
    """What still runs when the time is over ends, and is told so."""
    with Server(model, "-c", "2048", "--drain-timeout", "0", "--context-shift") as server:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.extend(server.stream("/completion", ask("endless", -1))))
        thread.start()
        server.until(lambda: any(slot["is_processing"] for slot in server.client.get("/slots").json()))
        assert server.end() == 0
        thread.join()
        assert answers[-1]["stop"] is True
        assert answers[-1]["stop_type"] == "none"
        assert "what still ran was ended" in server.said


def test_a_second_signal_waits_for_nothing(model: Path) -> None:
    with Server(model, "-c", "2048", "--drain-timeout", "600", "--context-shift") as server:
        thread = threading.Thread(target=lambda: list(server.stream("/completion", ask("endless", -1))))
        thread.start()
        server.until(lambda: any(slot["is_processing"] for slot in server.client.get("/slots").json()))
        server.process.send_signal(signal.SIGINT)
        server.until(lambda: "once more ends it at once" in server.said)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        thread.join()


def test_keys_tls_sockets_and_a_public_prefix(model: Path, tmp_path: Path) -> None:
    key, cert = certificate(tmp_path)
    public, keys, path = tmp_path / "public.txt", tmp_path / "keys", tmp_path / "llm.sock"
    public.write_text(LONG)
    keys.write_text("# two\nalpha\nbeta\n")
    options = (
        "-c", "2048", "-np", "2", "-kvu", "--metrics", "--api-key", "gamma", "--api-key-file", str(keys),
        "--public-prefix", str(public), "--ssl-key-file", key, "--ssl-cert-file", cert, "--api-prefix", "/llm",
        "--host", f"127.0.0.1,{path}", "--slot-save-path", str(tmp_path),
    )  # fmt: skip
    trust = ssl.create_default_context(cafile=cert)
    trust.check_hostname = False
    with Server(model, *options, verify=trust) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.url.endswith("/llm")
        headers = {name: {"Authorization": f"Bearer {name}"} for name in ("alpha", "beta", "gamma")}
        n_public = len(server.post("/tokenize", {"content": LONG}, headers=headers["alpha"])["tokens"])

        def cached(prompt: str, who: str) -> int:
            answer = server.post("/completion", ask(prompt, 2, id_slot=0), headers=headers[who])
            return int(answer["timings"]["cache_n"])

        assert server.client.post("/completion", json=ask("x", 1)).status_code == 401
        secret = "what only one of them asks, again and again and again"
        assert [cached(secret, who) for who in ("alpha", "beta", "gamma")] == [0, 0, 0]
        assert all(cached(secret, who) > 0 for who in ("alpha", "beta", "gamma"))
        assert all(cached(f"{LONG}{who}", who) >= n_public - 1 for who in ("alpha", "beta"))
        # A slot belongs to the key that used it last, and so does its file.
        assert cached("the text of alpha in its slot", "alpha") == 0
        mine = {"filename": "mine"}
        assert server.client.post("/slots/0?action=save", json=mine, headers=headers["beta"]).status_code == 403
        server.post("/slots/0?action=save", mine, headers=headers["alpha"])
        assert server.client.post("/slots/1?action=restore", json=mine, headers=headers["beta"]).status_code == 403
        server.post("/slots/1?action=restore", mine, headers=headers["alpha"])
        seen = {who: server.client.get("/cache", headers=headers[who]).json()["prefixes"] for who in headers}
        assert {item["id"] for item in seen["alpha"]} & {item["id"] for item in seen["beta"]} == {
            item["id"] for item in seen["alpha"] if item["public"]
        }
        assert any(item["pinned"] and item["public"] for item in seen["gamma"])
        transport = httpx.HTTPTransport(uds=str(path), verify=trust)
        with httpx.Client(transport=transport, base_url="https://llm") as client:
            assert client.get("/llm/health").json() == {"status": "ok"}
    assert not path.exists()


def certificate(folder: Path) -> tuple[str, str]:
    """The files of a key and of a certificate for it; skips where openssl is not there to make them."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there")
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    names = "subjectAltName=DNS:localhost,DNS:llm,IP:127.0.0.1"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    made = [*command.split(), "-addext", names, "-keyout", key, "-out", cert]
    subprocess.run(made, check=True, capture_output=True)
    return key, cert


def test_it_says_why_it_cannot_start(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_llmkit("serve", "-m", str(model), "--port", port)
    assert done.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr
    (tmp_path / "bad.pem").write_text("no key")
    bad = str(tmp_path / "bad.pem")
    for options, said in (
        (("--host", "no such host"), "is no address"),
        (("--host", "1.2.3.4"), "cannot listen at 1.2.3.4"),
        (("--ssl-key-file", bad), "TLS needs both"),
        (("--ssl-key-file", bad, "--ssl-cert-file", bad), "cannot be used"),
        (("--public-prefix", "/no/such"), "is no file"),
        (("--slot-save-path", "/no/such"), "is no folder"),
        (("-m", "/no/such.gguf"), "/no/such.gguf"),
    ):
        done = run_llmkit("serve", "-m", str(model), "--port", "0", *options)
        assert done.returncode == 1, options
        assert said in done.stderr, done.stderr


def test_a_model_that_does_not_load_ends_it(tmp_path: Path) -> None:
    """It listens already, and answers that it is loading."""
    path = make_model(tmp_path / "ids.gguf")  # without texts
    server = Server(path, ready=False)
    assert server.process.wait(120) == 1
    server._reader.join(10)
    assert "error: " in server.said
    assert "no tokenizer for text" in server.said


def test_an_address_that_no_server_answers_at_any_more(tmp_path: Path) -> None:
    from llmkit.serving.server import open_sockets
    from llmkit.serving.settings import ServeSettings

    path = str(tmp_path / "old.sock")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(path)
    for sock in open_sockets(ServeSettings(hosts=(path, "127.0.0.1", "::1"), port=0)):
        name = sock.getsockname()
        sock.close()
        if name == path:
            os.unlink(path)


def test_json_of_a_prefix(model: Path, tmp_path: Path) -> None:
    """Messages, through the template."""
    messages = [{"role": "system", "content": "Be brief. " * 20}]
    path = tmp_path / "system.json"
    path.write_text(json.dumps({"messages": messages}))
    with Server(model, "-c", "1024", "--public-prefix", str(path)) as server:
        assert f"public prefix {path}: " in server.said
        chat = {"messages": [*messages, {"role": "user", "content": "x"}], "max_tokens": 1}
        usage = server.post("/v1/chat/completions", chat)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 100


def test_a_model_with_windows(tmp_path: Path) -> None:
    """Reuse ends at points: a conversation's first user message is one, so others go on from the system prompt."""
    model = make_model(tmp_path / "w.gguf", arch="gemma3", tokenizer="spm", n_ctx_train=1024, n_layer=6, window=64)
    system = {"role": "system", "content": "Be brief and kind. " * 20}
    with Server(model, "-c", "1024", "-np", "2", "-kvu") as server:
        n_system = server.post("/v1/chat/completions/input_tokens", {"messages": [system]})["input_tokens"]
        found = []
        for text in ("one two three", "another thing"):
            chat = {"messages": [system, {"role": "user", "content": text}], "max_tokens": 2, **GREEDY}
            usage = server.post("/v1/chat/completions", chat)["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert found[0] == 0
        assert found[1] > n_system - 40
        answer = server.post("/completion", ask(LONG, 12, return_tokens=True))
        more = [*server.post("/tokenize", {"content": LONG, "add_special": True})["tokens"], *answer["tokens"]]
        assert server.post("/completion", ask(more, 2))["timings"]["prompt_n"] == 1
