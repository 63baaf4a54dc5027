"""OpenAI's routes over a fake engine. That the official client can use them is test_server.py's."""

from typing import Any

import pytest

from llmkit.serving.chat import chat_ids, read_chat
from tests.serving.conftest import Site
from tests.serving.test_native import TIMINGS, events
from tests.tools.fake_engine import BOS

USER = {"role": "user", "content": "Hi"}
CHAT = "/v1/chat/completions"


def error(response: Any) -> tuple[int, str, Any]:
    found = response.json()["error"]
    assert found["param"] is None
    return response.status_code, found["message"], found["code"]


def test_an_answer(site: Site) -> None:
    answer = site.post(CHAT, {"messages": [USER], "max_tokens": 3}).json()
    assert set(answer) == {"choices", "created", "id", "model", "system_fingerprint", "object", "usage", "timings"}
    message = {"role": "assistant", "content": " w\ufffd"}
    assert answer["choices"] == [{"finish_reason": "length", "index": 0, "message": message}]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    n_prompt = len("<bos>") and 1 + len("<user>Hi<assistant>")
    assert answer["usage"] == {
        "completion_tokens": 3, "prompt_tokens": n_prompt, "total_tokens": n_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip
    assert set(answer["timings"]) >= TIMINGS
    assert site.engine.handles[0].request.prompt_ids == [BOS, *b"<user>Hi<assistant>"]
    assert site.post("/chat/completions", {"messages": [USER]}).json()["choices"][0]["finish_reason"] == "stop"


def test_a_stream(site: Site) -> None:
    body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}, "n": 2}
    response = site.post(CHAT, body)
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    first, second, *chunks, usage = events(response)
    assert [c["choices"][0]["delta"] for c in (first, second)] == [{"role": "assistant", "content": None}] * 2
    for i in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == i]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == " wörld!"
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2 * 9
    assert len({chunk["id"] for chunk in (first, *chunks, usage)}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in (first, *chunks, usage))
    *_, last = events(site.post(CHAT, {"messages": [USER], "stream": True}))
    assert "usage" not in last
    assert set(last["timings"]) >= TIMINGS


def test_logprobs(site: Site) -> None:
    body = {"messages": [USER], "logprobs": True, "top_logprobs": 1, "max_tokens": 4}
    whole = site.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["id"] for entry in whole] == list(" wö".encode())
    assert all(len(entry["top_logprobs"]) == 1 for entry in whole)
    chunks = [chunk["choices"][0] for chunk in events(site.post(CHAT, {**body, "stream": True}))]
    assert [entry for chunk in chunks if "logprobs" in chunk for entry in chunk["logprobs"]["content"]] == whole
    assert site.post(CHAT, {"messages": [USER], "logprobs": True}).status_code == 200
    assert site.engine.handles[-1].request.params.n_logprobs == 20
    found = error(site.post(CHAT, {"messages": [USER], "top_logprobs": 1}))
    assert found == (400, "top_logprobs requires logprobs to be set to true", 400)


def test_a_completion(site: Site) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1}
    answer = site.post("/v1/completions", body).json()
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == [" w", " w"]
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == [" ", "w"]
    assert found["token_logprobs"] == [entry["logprob"] for entry in found["content"]] == [-0.5, -0.5]
    assert (found["text_offset"], found["top_logprobs"]) == ([0, 1], [{"\0": -1.0}] * 2)
    assert answer["usage"]["prompt_tokens"] == 4
    chunks = events(site.post("/v1/completions", {"prompt": "a", "stream": True, "logprobs": 0, "echo": False}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " wörld!"
    offsets = [at for c in chunks if c["choices"][0]["logprobs"] for at in c["choices"][0]["logprobs"]["text_offset"]]
    assert offsets[:3] == [0, 1, 2]


def test_the_prompt_again(site: Site) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 1}
    assert site.post("/v1/completions", body).json()["choices"][0]["text"] == "<bos>ab "
    chunks = events(site.post("/v1/completions", {**body, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "<bos>ab "


def test_the_answer_begins_as_the_client_says(site: Site) -> None:
    begun = [USER, {"role": "assistant", "content": "Sure,"}]
    answer = site.post(CHAT, {"messages": begun}).json()["choices"][0]["message"]["content"]
    assert answer == "Sure, wörld!"
    assert site.engine.handles[-1].request.prompt_ids[-5:] == list(b"Sure,")
    chunks = events(site.post(CHAT, {"messages": begun, "stream": True}))
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == answer
    site.post(CHAT, {"messages": begun, "continue_final_message": False})
    assert site.engine.handles[-1].request.prompt_ids[-11:] == list(b"<assistant>")
    two = error(site.post(CHAT, {"messages": [*begun, begun[1]]}))
    assert two[1] == "Cannot have 2 or more assistant messages at the end of the list."


def test_prefill_can_be_switched_off(make_site: Any) -> None:
    site = make_site(prefill_assistant=False)
    site.post(CHAT, {"messages": [USER, {"role": "assistant", "content": "Sure,"}]})
    assert site.engine.handles[-1].request.prompt_ids[-11:] == list(b"<assistant>")


def test_response_format(site: Site) -> None:
    for wanted, grammar in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, ("schema", {"type": "object"})),
        ({"type": "json_object", "schema": {"type": "array"}}, ("schema", {"type": "array"})),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}, ("schema", {"type": "null"})),
    ):  # fmt: skip
        assert site.post(CHAT, {"messages": [USER], "response_format": wanted}).status_code == 200
        assert site.engine.handles[-1].request.grammar == grammar
    assert "must be one of" in error(site.post(CHAT, {"messages": [USER], "response_format": {"type": "nope"}}))[1]
    body = {"messages": [USER], "response_format": {"type": "json_object"}, "grammar": "root ::= x"}
    assert error(site.post(CHAT, body))[0] == 400


def test_parts_are_lines(site: Site) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    site.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert bytes(site.engine.handles[0].request.prompt_ids[1:]) == b"<user>a\nb<assistant>"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "'messages' is required"),
        ({"messages": []}, 400, "'messages' must not be empty"),
        ({"messages": [5]}, 400, "Expected each of 'messages' to be an object"),
        ({"messages": [{"content": "x"}]}, 400, "Missing 'role' in message"),
        ({"messages": [{"role": "user"}]}, 400, "All non-assistant messages must contain 'content'"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "Expected 'content' to be a string or an array"),
        ({"messages": [{"role": "user", "content": [5]}]}, 400, "Expected each part of 'content'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 501, "image_url"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 501, "tool calls"),
        ({"messages": [USER], "tools": [{}]}, 501, "tools"),
        ({"messages": [USER], "tool_choice": "required"}, 501, "tool_choice"),
        ({"messages": [USER], "modalities": ["audio"]}, 501, "text only"),
        ({"messages": [USER], "reasoning_format": "deepseek"}, 501, "reasoning_format"),
        ({"messages": [USER], "chat_template": "{{ 1 }}"}, 400, "--request-templates"),
        ({"messages": [USER], "chat_template_kwargs": {"messages": []}}, 400, "not yours to set"),
        ({"messages": [USER], "n": 5}, 400, "Field 'n_cmpl'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(site: Site, body: Any, status: int, said: str) -> None:
    found = error(site.post(CHAT, body))
    assert found[0] == status
    assert said in found[1]
    assert not site.engine.handles


@pytest.mark.parametrize("field", [{"suffix": "x"}, {"best_of": 2}, {"echo": True, "logprobs": 1}])
def test_what_completions_do_not_do(site: Site, field: dict[str, Any]) -> None:
    assert error(site.post("/v1/completions", {"prompt": "x", **field}))[0] == 501


def test_a_prompt_too_long_has_openais_code(site: Site) -> None:
    status, text, code = error(site.post("/v1/completions", {"prompt": [65] * 128}))
    assert (status, code) == (400, "context_length_exceeded")
    assert "128 tokens" in text


def test_templates_of_requests(make_site: Any) -> None:
    """In a process of its own, within limits."""
    site = make_site(request_templates=True)
    text = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    site.post(CHAT, {"messages": [USER], "chat_template": text})
    assert bytes(site.engine.handles[0].request.prompt_ids[1:]) == b"[Hi]"
    for hostile in ("{{ ''.__class__.__mro__ }}", "{{ 'x' * 999999999999 }}", "{% for"):
        assert error(site.post(CHAT, {"messages": [USER], "chat_template": hostile}))[0] == 400
    assert site.get("/health").status_code == 200


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_strict_template(make_site: Any, place: int) -> None:
    """Case 7: a system message where the template wants none is the client's mistake."""
    site = make_site(request_templates=True)
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
        "{% endif %}[{{ m.content }}]{% endfor %}"
    )
    messages = [USER, {"role": "assistant", "content": "Yes"}, USER]
    messages.insert(place, {"role": "system", "content": "Be."})
    response = site.post(CHAT, {"messages": messages, "chat_template": strict})
    assert response.status_code == (200 if place == 0 else 400)
    assert place == 0 or "system first" in response.json()["error"]["message"]
    assert site.get("/health").status_code == 200


def test_more_for_the_template(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site, seen = make_site(template_kwargs={"a": 1, "b": 1}), []
    monkeypatch.setattr(site.state.served.template, "render", lambda messages, **more: seen.append(more) or "x")
    site.post(CHAT, {"messages": [USER], "chat_template_kwargs": {"b": 2}, "reasoning_effort": "low"})
    assert seen[0]["a"] == 1
    assert (seen[0]["b"], seen[0]["reasoning_effort"]) == (2, "low")


def test_messages_begin_at_points_where_there_are_windows(site: Site) -> None:
    """So that another conversation behind the same system prompt can go on from its end."""
    from llmkit.serving.bodies import ChatFields

    served = site.state.served
    assert served is not None
    messages = [{"role": "system", "content": "Be."}, USER, {"role": "assistant", "content": "Yes"}, USER]
    prompt = read_chat(served, site.state.settings, ChatFields(messages=messages))
    assert chat_ids(served, prompt)[1] == ()
    served.model.config.windows = (0, 32)
    ids, points = chat_ids(served, prompt)
    texts = [bytes(ids[1:point]).decode() for point in points]
    assert texts == ["<system>Be.<user>", "<system>Be.<user>Hi<assistant>Yes<user>"]


def test_counting_tokens(site: Site) -> None:
    answer = site.post("/v1/chat/completions/input_tokens", {"messages": [USER]}).json()
    assert answer == {"input_tokens": 1 + len("<user>Hi<assistant>"), "object": "response.input_tokens"}
