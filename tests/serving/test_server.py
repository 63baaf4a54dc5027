"""A real server with a tiny model: what clients see of it."""

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.make_models import make_model
from tests.serving.server_process import Server

N_CTX = 1024
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served") / "tiny.gguf", tokenizer="bpe", n_ctx_train=N_CTX)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    options = ("-c", str(N_CTX), "-np", "4", "-kvu", "--metrics", "--queue", "40", "--alias", "tiny")
    with Server(model, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


# -- the official client ----------------------------------------------------------------------------------------------

NO_END = {"ignore_eos": True}
MESSAGES: Any = [{"role": "system", "content": "You count."}, {"role": "user", "content": "one two"}]


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, extra_body=NO_END
    )
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None
    again = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, extra_body=NO_END
    )
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, stream=True, logprobs=True, top_logprobs=2,
        stream_options={"include_usage": True}, extra_body=NO_END,
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    said = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for logs in said for entry in logs.content or [])


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="the river", max_tokens=6, n=2, seed=3, logprobs=3, stop=["\n\n"], logit_bias={"5": -100}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert all(value is not None and value <= 0 for value in found.token_logprobs)
    same = client.completions.create(
        model="tiny", prompt="the river", max_tokens=6, n=2, seed=3, stop=["\n\n"], logit_bias={"5": -100}
    )
    assert [choice.text for choice in same.choices] == [choice.text for choice in answer.choices]
    streamed = client.completions.create(model="tiny", prompt="the river", max_tokens=6, stream=True, seed=3)
    assert len("".join(chunk.choices[0].text for chunk in streamed)) > 0
    assert [model.id for model in client.models.list().data] == ["tiny"]


def test_the_official_client_is_told_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[65] * N_CTX)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=[])
    with pytest.raises(openai.InternalServerError):  # its name for all above 500
        client.embeddings.create(model="tiny", input="x")


# -- what is computed ---------------------------------------------------------------------------------------------


def ids_of(server: Server, prompt: Any, **more: Any) -> tuple[list[int], list[float]]:
    body = {"prompt": prompt, "n_predict": 12, "n_probs": 1, "return_tokens": True, **GREEDY, **more}
    answer = server.post("/completion", body)
    return answer["tokens"], [entry["logprob"] for entry in answer["completion_probabilities"]]


def test_many_at_once_get_what_each_gets_alone(server: Server) -> None:
    prompts = [f"{i} {'river ' * (i % 5 * 20)}{'ab' * (7 * i % 60)}" for i in range(24)]
    alone = [ids_of(server, prompt, cache_prompt=False) for prompt in prompts]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda prompt: ids_of(server, prompt), prompts))
        again = list(pool.map(lambda prompt: ids_of(server, prompt), prompts))
    assert together == alone
    assert again == alone


def test_a_prefix_is_computed_once(server: Server) -> None:
    """Ten at once with one new prefix: one computes it."""
    prefix = "a prefix that nobody has asked for yet " * 8
    computed = server.metric("llamacpp:prompt_tokens_total")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda i: server.post("/completion", ask(f"{prefix}{i}", 1)), range(10)))
    n_prefix = len(server.post("/tokenize", {"content": prefix})["tokens"])
    n_all = [answer["tokens_evaluated"] for answer in answers]
    for answer in answers:
        assert answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == answer["tokens_evaluated"]
    assert sum(answer["timings"]["prompt_n"] for answer in answers) < n_prefix + sum(n - n_prefix + 33 for n in n_all)
    assert server.metric("llamacpp:prompt_tokens_total") - computed == sum(a["timings"]["prompt_n"] for a in answers)
    state = server.client.get("/metrics?format=json").json()["state_cache"]
    assert state["hits"] > 0
    assert 0 < state["hit_rate"] <= 1


def ask(prompt: Any, n: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": n, **GREEDY, **more}


@pytest.mark.parametrize(("n", "status", "n_predicted"), [(1023, 200, 2), (1024, 400, 0), (1025, 400, 0)])
def test_prompts_at_the_end_of_the_context(server: Server, n: int, status: int, n_predicted: int) -> None:
    response = server.client.post("/completion", json=ask([70 + i % 50 for i in range(n)], 4))
    assert response.status_code == status
    if status == 200:
        # The last cell takes a token, after which one more is known.
        assert (response.json()["tokens_predicted"], response.json()["stop_type"]) == (n_predicted, "limit")
        assert response.json()["truncated"] is True
    else:
        assert (response.json()["error"]["n_prompt_tokens"], response.json()["error"]["n_ctx"]) == (n, N_CTX)
    assert server.post("/completion", ask("next", 1))["tokens_predicted"] == 1


def test_streams_say_what_answers_say(server: Server) -> None:
    body = ask("stream of a river", 20, n_probs=2)
    whole = server.post("/completion", body)
    *chunks, last = server.stream("/completion", body)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    said = [entry for chunk in chunks for entry in chunk["completion_probabilities"]]
    assert said == whole["completion_probabilities"]
    assert last["timings"]["cache_n"] == last["tokens_evaluated"] - 1
    assert last["tokens_predicted"] == 20


def test_probabilities_after_sampling(server: Server) -> None:
    """They sum up to 1 over what is left, and change with the temperature; those of the model do not."""
    found = {}
    for temperature in (0.5, 2.0):
        body = {"prompt": "x", "n_predict": 1, "seed": 1, "n_probs": 40, "temperature": temperature, "top_k": 5}
        entry = server.post("/completion", {**body, "post_sampling_probs": True})["completion_probabilities"][0]
        raw = server.post("/completion", body)["completion_probabilities"][0]
        assert 1 <= len(entry["top_probs"]) <= 5
        assert sum(top["prob"] for top in entry["top_probs"]) == pytest.approx(1)
        assert entry["prob"] in [top["prob"] for top in entry["top_probs"]]
        found[temperature] = entry["top_probs"][0]["prob"], raw["top_logprobs"]
    assert found[0.5][0] > found[2.0][0]
    assert found[0.5][1] == found[2.0][1]


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ({"grammar": 'root ::= "yes" | "no"'}, {"yes", "no"}),
        ({"json_schema": {"enum": ["a", "b"]}}, {'"a"', '"b"'}),
    ],
)
def test_grammars(server: Server, body: dict[str, Any], allowed: set[str]) -> None:
    answer = server.post("/completion", {"prompt": "x", "n_predict": 20, "seed": 3, **body})
    assert answer["content"] in allowed
    assert answer["stop_type"] == "eos"
    streamed = server.stream("/completion", {"prompt": "x", "n_predict": 20, "seed": 3, **body})
    assert "".join(event["content"] for event in streamed) == answer["content"]


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= foo",
        'foo ::= "a"',
        'root ::= root "a"',
        'root ::= "a"{1000000}',
        "root ::=",
        'root ::= "a',
        "\0",
        "x" * 99999,
    ],
)
def test_grammars_that_cannot_be(server: Server, grammar: str) -> None:
    response = server.client.post("/completion", json={"prompt": "x", "n_predict": 1, "grammar": grammar})
    assert response.status_code in ((200, 400) if grammar == "root ::=" else (400,))
    if response.status_code == 400:
        assert response.json()["error"]["message"]
    wrong = server.client.post("/completion", json={"prompt": "x", "json_schema": {"type": "nope"}})
    assert wrong.status_code == 400


def test_the_official_client_gets_json(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=60, seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )  # fmt: skip
    assert json.loads(answer.choices[0].message.content or "") in ({"n": 1}, {"n": 2})


def test_progress(server: Server) -> None:
    events = server.stream("/completion", ask("fresh text " * 60, 1, return_progress=True, cache_prompt=False))
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["tokens_evaluated"]
    assert [step["processed"] for step in progress] == sorted(step["processed"] for step in progress)


def test_no_token_fills_the_cache(server: Server) -> None:
    prompt = "to be kept for later, all of it"
    first = server.post("/completion", ask(prompt, 0))
    assert (first["content"], first["tokens_predicted"]) == ("", 0)
    assert server.post("/completion", ask(prompt, 1))["timings"]["cache_n"] == first["tokens_evaluated"] - 1


def test_seeds(server: Server) -> None:
    def text(**more: Any) -> str:
        return str(server.post("/completion", {"prompt": "x", "n_predict": 12, "temperature": 5, **more})["content"])

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text() != text()


# -- clients that misbehave -----------------------------------------------------------------------------------------


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 30)


def request_bytes(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    return b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go(server: Server, stream: bool) -> None:
    """While they wait, in their prompt, in their text: nothing of them stays, and others are answered."""
    alone = ids_of(server, "an innocent one", cache_prompt=False)
    server.until_idle()
    cancelled = server.metric("llmkit:requests_cancelled_total")
    sockets = []
    moments = random.Random(1)
    for i in range(40):
        sockets.append(connect(server))
        time.sleep(moments.random() * 0.02)
        body = ask(f"{i} " + "gone " * (150 if i % 3 == 0 else 3), -1 if i % 3 else 5, stream=stream)
        sockets[-1].sendall(request_bytes(body))
    for i, sock in enumerate(sockets):
        if i % 4 == 0 and stream:
            sock.recv(100)
        sock.close()
    assert ids_of(server, "an innocent one") == alone
    server.until_idle()
    assert server.metric("llmkit:requests_cancelled_total") > cancelled
    assert not any(slot["is_processing"] for slot in server.client.get("/slots").json())


def test_a_queue_that_is_full(server: Server) -> None:
    """4 slots and 40 that wait; of 60 some are told to come again, and all others are answered."""
    sockets = [connect(server) for _ in range(60)]
    for i, sock in enumerate(sockets):
        sock.sendall(request_bytes(ask(f"{i} waits", 220 if i < 4 else 2)))
        if i == 3:
            server.until(lambda: all(slot["is_processing"] for slot in server.client.get("/slots").json()))
    answers = []
    for sock in sockets:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        answers.append(head)
        sock.close()
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503")]
    assert 0 < len(refused) <= 16
    assert all(b"retry-after: " in answer.lower() for answer in refused)
    assert sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) == 60 - len(refused)
    server.until_idle()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 200_000, b"400"),
        (b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n" + b"x" * 100_000, b"413"),
        (b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    ],
)
def test_what_is_no_http(server: Server, raw: bytes, status: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(raw)
        answer = sock.recv(4096)
    assert answer[:20].startswith(b"HTTP/1.1 " + status)
    assert server.client.get("/health").status_code == 200


def test_clients_that_are_slow_hold_up_nobody(server: Server) -> None:
    sockets = [connect(server) for _ in range(50)]
    for sock in sockets:
        sock.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert server.post("/completion", ask("quick", 2))["tokens_predicted"] == 2
    for sock in sockets:
        sock.close()


def test_the_log_tells_of_requests(server: Server) -> None:
    server.client.post("/completion", json=ask("x", 1), headers={"X-Request-Id": "look-for-me"})
    server.until(lambda: any("look-for-me 127.0.0.1 POST /completion 200" in line for line in server.lines))
