"""Requests that are meant to break something: a 4xx with a reason, and the server goes on."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmkit import report
from llmkit.errors import ContextFullError
from llmkit.serving.errors import ApiError, api_error, dumps, dumps_in_parts
from llmkit.serving.slot_files import check_readable, check_writable, slot_path
from tests.serving.conftest import Site
from tests.serving.fakes import fake_model

BODIES = {
    b"": 400,
    b"{": 400,
    b"nul": 400,
    b"[]": 400,
    b'"prompt"': 400,
    b'{"prompt": NaN}': 400,
    b'{"prompt": "x", "other": NaN}': 400,
    b'{"prompt": "x", "logit_bias": [[1, -Infinity]]}': 400,
    b'{"prompt": "x", "temperature": Infinity}': 400,
    b'{"prompt": "x", "temperature": -1e999}': 400,
    b'{"prompt": "x", "n_predict": ' + b"9" * 5000 + b"}": 400,
    b'{"prompt": "x", "seed": 1' + b"0" * 400 + b"}": 400,
    b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}": 400,
    b'{"a":' * 50000 + b"1" + b"}" * 50000: 400,
    b'{"prompt": "\xff\xfe"}': 400,
    b"\xef\xbb\xbf{}": 400,
    b'{"prompt": "\\ud800 \\udc00", "n_predict": 1}': 200,
    b'{"prompt": "a\\u0000b", "n_predict": 1}': 200,
    b'{"prompt": "\\ud83e\\udd99", "n_predict": null, "stop": null}': 200,
    b'{"prompt": "x", "PROMPT": {}, "__class__": [], "n_predict": 1}': 200,
}


@pytest.mark.parametrize(("body", "status"), BODIES.items(), ids=[str(body[:40]) for body in BODIES])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_bodies(site: Site, path: str, body: bytes, status: int) -> None:
    response = site.request("POST", path, content=body, headers={"Content-Type": "text/plain"})
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["message"]
    assert site.get("/health").status_code == 200


def test_half_a_character_becomes_its_replacement(site: Site) -> None:
    answer = site.request("POST", "/completion", content=b'{"prompt": "a\\ud800b", "stop": ["\\udfff"]}').json()
    assert answer["prompt"] == "<bos>a\ufffdb"
    assert answer["generation_settings"]["stop"] == ["\ufffd"]


def test_large_bodies(make_site: Any) -> None:
    site = make_site(max_body_bytes=100_000)
    large = json.dumps({"prompt": "x" * 100_000}).encode()
    for path in ("/completion", "/v1/chat/completions", "/tokenize", "/props", "/slots/0"):
        response = site.request("POST", path, content=large)
        assert response.status_code == 413, path
    announced = site.request("POST", "/completion", content=b"{}", headers={"Content-Length": str(2 << 30)})
    assert announced.status_code == 413

    async def endless() -> Any:
        for _ in range(1000):
            yield b"x" * 1000

    assert site.request("POST", "/completion", content=endless()).status_code == 413
    assert site.get("/health").status_code == 200


def test_texts_that_cannot_fit_are_not_encoded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest token, <bos>, has five bytes: 128 tokens hold 640 at most."""
    served = site.state.served
    assert served is not None
    encoded: list[int] = []
    encode = served.tokenizer.encode
    monkeypatch.setattr(
        served.tokenizer, "encode", lambda text, *a, **k: encoded.append(len(text)) or encode(text, *a, **k)
    )
    for path, body in (
        ("/completion", {"prompt": "x" * 100_000}),
        ("/v1/completions", {"prompt": ["x" * 100_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 100_000}]}),
        ("/infill", {"input_prefix": "x" * 100_000}),
    ):
        error = site.post(path, body).json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] >= 100_000 // 5
    assert encoded == []
    assert site.post("/completion", {"prompt": " " * 120 + "x" * 6}).status_code == 200
    assert site.post("/completion", {"prompt": "x" * 130}).json()["error"]["n_prompt_tokens"] == 131


def test_stop_strings_have_a_bound_together(site: Site) -> None:
    for path in ("/completion", "/v1/completions"):
        assert site.post(path, {"prompt": "x", "n_predict": 1, "stop": ["a" * 8192, "b" * 8192]}).status_code == 200
        found = site.post(path, {"prompt": "x", "stop": ["a" * 8192, "b" * 8193]})
        assert found.status_code == 400
        assert "16384 characters" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "most", "more"),
    [
        ("stop", ["a"] * 256, ["a"] * 257),
        ("dry_sequence_breakers", ["a"] * 256, ["a"] * 257),
        ("dry_sequence_breakers", ["a" * 16384], ["a" * 16385]),
        ("samplers", ["top_k"] * 64, ["top_k"] * 65),
        ("samplers", "k" * 64, "k" * 65),
        ("logit_bias", [[1, 1]] * fake_model().config.n_vocab, [[1, 1]] * (fake_model().config.n_vocab + 1)),
    ],
)
def test_lists_that_cost_each_token_have_a_bound(site: Site, field: str, most: Any, more: Any) -> None:
    """They are gone through by the engine's thread, which all share."""
    assert site.post("/completion", {"prompt": "x", "n_predict": 1, field: most}).status_code == 200
    found = site.post("/completion", {"prompt": "x", "n_predict": 1, field: more})
    assert found.status_code == 400
    assert f"'{field}'" in found.json()["error"]["message"]


def test_probabilities_have_a_bound(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 128 always; more only for few tokens, counted over all prompts and answers."""
    monkeypatch.setattr("llmkit.serving.completion.MAX_PROBS", 4)
    monkeypatch.setattr("llmkit.serving.completion.MAX_PROBS_IN_ALL", 20)
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    for path, name, body in (
        ("/completion", "n_probs", {"prompt": "x"}),
        ("/v1/completions", "logprobs", {"prompt": "x"}),
        ("/v1/chat/completions", "top_logprobs", chat),
    ):
        assert site.post(path, {**body, name: 4}).status_code == 200
        assert site.post(path, {**body, name: 5, "max_tokens": 4}).status_code == 200
        for more in ({}, {"max_tokens": 5}, {"max_tokens": 3, "n": 2}):
            assert site.post(path, {**body, name: 5, **more}).status_code == 400, (path, more)
    several = {"prompt": ["x", "y"], "n_probs": 5, "n_predict": 3}
    assert site.post("/completion", several).status_code == 400


def test_no_room_beside_pinned_prefixes_is_no_bug() -> None:
    found = api_error(ContextFullError("the cells that it needs are kept for pinned prefixes", "Unpin some."))
    assert (found.status, found.headers) == (503, {"Retry-After": "1"})


def test_large_answers_are_the_same_bytes() -> None:
    deep: object = [1, "é", None, {"a": []}]
    for i in range(9):
        deep = {"k": deep, "\u00fc": [deep, i]} if i % 2 else [deep, {}, deep]
    for value in (deep, [], {}, [[]], [{}, 1], "x", {"a": [1.5, True]}):
        assert dumps_in_parts(value) == dumps(value)


def test_a_body_that_does_not_come(make_site: Any) -> None:
    async def slow() -> Any:
        yield b"{"
        await asyncio.sleep(60)

    response = make_site(timeout_s=1).request("POST", "/completion", content=slow())
    assert (response.status_code, response.json()["error"]["type"]) == (408, "request_timeout_error")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nope"), ("GET", "/completion"), ("PUT", "/props"), ("DELETE", "/slots"), ("POST", "/health"),
     ("GET", "/slots/0"), ("POST", "/cache"), ("GET", "/completion/"), ("GET", "/../etc/passwd")],
)  # fmt: skip
def test_routes_that_there_are_not(site: Site, method: str, path: str) -> None:
    response = site.request(method, path)
    assert response.status_code == 404
    assert response.json() == {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


@pytest.mark.parametrize(
    "path",
    ["/embedding", "/v1/embeddings", "/rerank", "/v1/responses", "/v1/messages", "/v1/audio/transcriptions", "/tools"],
)
def test_routes_that_are_to_come(site: Site, path: str) -> None:
    response = site.post(path, {})
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


def test_a_bug_is_a_500_with_an_id(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    site.engine.submit = broken  # type: ignore[method-assign]
    response = site.post("/completion", {"prompt": "x"}, headers={"X-Request-Id": "my-id"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "my-id")
    assert "my-id" in response.json()["error"]["message"]
    assert "secret" not in response.text
    assert "RuntimeError: secret" in capsys.readouterr().err


def test_ids_of_requests(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("x" * 65, "a b", "a\u00e9"):
        response = site.get("/health", headers={"X-Request-Id": given.encode("latin-1")})  # type: ignore[dict-item]
        assert response.headers["x-request-id"] != given
    site.post("/completion", {"prompt": "x", "n_predict": 1}, headers={"X-Request-Id": "abc"})
    assert "abc 127.0.0.1 POST /completion 200 in " in (said := capsys.readouterr().err)
    assert "prompt 1, cached 1, generated 1" in said


def test_looks_at_the_server_are_logged_when_it_is_verbose(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        report.set_level(verbose=verbose)
        try:
            site.get("/health")
        finally:
            report.set_level()
        assert ("GET /health 200" in capsys.readouterr().err) is verbose


def test_pages_of_others(make_site: Any) -> None:
    origin = {"Origin": "http://a.b"}
    asked = {**origin, "Access-Control-Request-Method": "POST"}
    allowed = make_site(api_keys=("k",)).request("OPTIONS", "/v1/completions", headers=asked)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "http://a.b")
    assert "POST" in allowed.headers["access-control-allow-methods"]
    refused = make_site(cors_origins=("http://c.d",)).get("/health", headers=origin)
    assert "access-control-allow-origin" not in refused.headers


# -- slot files -----------------------------------------------------------------------------------------------------

NAMES = [
    "../x", "/etc/x", "a/b", "..", ".", "", "a\0b", "x" * 300, "ü" * 150, "CON", "con.bin", "a\\b", "c:x", "a\n", " a",
    "a ", "a.", ".hidden", "NUL", "a*", "a?", "\x7f",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("action", ["save", "restore"])
def test_names_that_escape(make_site: Any, tmp_path: Path, name: str, action: str) -> None:
    site = make_site(slot_save_path=str(tmp_path))
    response = site.post(f"/slots/0?action={action}", {"filename": name})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Invalid filename"


def test_what_lies_in_the_way(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"\x89LLMS")
    folder = tmp_path / "slots"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to(tmp_path / "new")
    (folder / "dir").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "foreign").write_text("mine")
    (folder / "ours").write_bytes(b"\x89LLMS...")
    for name in ("link", "dangling", "dir", "pipe", "foreign"):
        with pytest.raises(ApiError):
            check_writable(slot_path(str(folder), name), (b"\x89LLMS",))
        if name != "foreign":
            with pytest.raises(ApiError):
                check_readable(slot_path(str(folder), name))
    check_writable(slot_path(str(folder), "ours"), (b"\x89LLMS",))
    check_writable(slot_path(str(folder), "new"), (b"\x89LLMS",))
    with pytest.raises(ApiError):
        check_readable(slot_path(str(folder), "new"))


def test_slots_that_cannot_be_saved(make_site: Any, tmp_path: Path) -> None:
    site = make_site(slot_save_path=str(tmp_path))
    for path, body, said in (
        ("/slots/9?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/x?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/-1?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/0?action=nope", {"filename": "a"}, "Invalid action"),
        ("/slots/0", {"filename": "a"}, "Invalid action"),
        ("/slots/0?action=save", {}, "Field 'filename': it is missing"),
        ("/slots/0?action=save", {"filename": 5}, "Field 'filename': Input should be a valid string"),
        ("/slots/0?action=save", {"filename": "a"}, "slot 0 holds nothing to save"),
        ("/slots/0?action=restore", {"filename": "a"}, "Unable to restore slot"),
    ):
        response = site.post(path, body)
        assert response.status_code == 400
        assert said in response.json()["error"]["message"]
    closed = make_site().post("/slots/0?action=save", {"filename": "a"})
    assert closed.status_code == 501
    assert "--slot-save-path" in closed.json()["error"]["message"]


def test_headers_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose request does not begin is closed, and one with headers without bounds is refused."""
    import uvicorn

    from llmkit.serving import server

    monkeypatch.setattr(server, "HEADER_S", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is complete")

    async def go() -> tuple[bytes, bytes]:
        config = uvicorn.Config(app, http=server._Protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        listening = await asyncio.get_running_loop().create_server(
            lambda: server._Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        port = listening.sockets[0].getsockname()[1]
        slow_reader, slow_writer = await asyncio.open_connection("127.0.0.1", port)
        slow_writer.write(b"GET / HT")
        large_reader, large_writer = await asyncio.open_connection("127.0.0.1", port)
        large_writer.write(b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: %s\r\n" % (i, b"x" * 1000) for i in range(200)))

        async def ending(reader: asyncio.StreamReader) -> bytes:
            try:
                return await reader.read()
            except ConnectionResetError:  # it was closed with something unread
                return b"HTTP/1.1 400 "

        answers = await asyncio.wait_for(asyncio.gather(ending(slow_reader), ending(large_reader)), 10)
        for writer in (slow_writer, large_writer):
            writer.close()
        listening.close()
        return answers[0], answers[1]

    slow, large = asyncio.run(go())
    assert slow == b""
    assert large.startswith(b"HTTP/1.1 400 ")
