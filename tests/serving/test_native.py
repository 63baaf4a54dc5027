"""llama.cpp's own routes over a fake engine: what is asked of it, and what answers look like."""

import json
from typing import Any

import httpx
import pytest

from tests.serving.conftest import Site
from tests.tools.fake_engine import BOS, EOS

# The keys of llama-server b11434's answer, less those of features that are not here.
KEYS = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached",
    "timings",
}  # fmt: skip
SETTINGS = {
    "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "stop",
    "max_tokens", "n_predict", "n_keep", "n_discard", "ignore_eos", "stream", "logit_bias", "n_probs", "min_keep",
    "grammar", "samplers", "timings_per_token", "post_sampling_probs", "lora",
}  # fmt: skip
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


def events(response: httpx.Response) -> list[Any]:
    """What a stream said, without its end."""
    parts = [part.removeprefix("data: ") for part in response.text.strip().split("\n\n")]
    return [json.loads(part) for part in parts if part != "[DONE]"]


def message(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    return f"{response.status_code} {error['type']}: {error['message']}"


def test_an_answer(site: Site) -> None:
    body = {"prompt": "Hi", "seed": 7, "temperature": 0.5, "stop": "!", "n_probs": 2, "return_tokens": True}
    answer = site.post("/completion", body).json()
    assert set(answer) == KEYS | {"completion_probabilities"}
    assert set(answer["generation_settings"]) == SETTINGS
    assert set(answer["timings"]) == TIMINGS | {"queue_ms", "first_token_ms"}
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == (" wörld", "word", "!")
    assert answer["tokens"] == list(" wörld!".encode())
    assert (answer["tokens_evaluated"], answer["tokens_predicted"], answer["prompt"]) == (3, 8, "<bos>Hi")
    assert answer["timings"]["prompt_per_second"] == answer["timings"]["prompt_n"] / 0.25 == 8
    assert (answer["generation_settings"]["seed"], answer["generation_settings"]["temperature"]) == (7, 0.5)
    first = answer["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"], first["logprob"]) == (32, " ", [32], -0.5)
    assert [top["id"] for top in first["top_logprobs"]] == [0, 1]


def test_what_the_engine_is_asked_for(site: Site) -> None:
    body = {
        "prompt": [[72, "i"], "b"], "max_tokens": 5, "id_slot": 2, "cache_prompt": False, "n_keep": -1, "n_discard": 3,
        "logit_bias": [["a", False], [66, 1.5], [9999, 1]], "t_max_predict_ms": 250, "n_indent": 4, "stop": ["<eos>"],
        "samplers": "kt", "typ_p": 0.5, "temp": 0, "ignore_eos": True,
    }  # fmt: skip
    site.post("/completion", body)
    first, second = (handle.request for handle in site.engine.handles)
    assert (first.prompt_ids, second.prompt_ids) == ([72, ord("i")], [BOS, ord("b")])
    assert (first.params.n_predict, first.id_slot, first.cache_prompt) == (5, 2, False)
    assert (first.n_keep, first.n_discard, first.t_max_predict_s, first.n_indent) == (2, 3, 0.25, 4)
    assert first.sampling.logit_bias == ((97, float("-inf")), (66, 1.5))
    assert (first.sampling.samplers, first.sampling.typical_p, first.sampling.temp) == (
        ("top_k", "temperature"),
        0.5,
        0,
    )
    assert (first.stop_ids, first.sampling.ignore_eos) == ({EOS: "<eos>"}, True)


def test_a_stream_is_the_answer_in_pieces(site: Site) -> None:
    body = {"prompt": "Hi", "stream": True, "n_probs": 1, "seed": 1}
    whole = site.post("/completion", {**body, "stream": False}).json()
    response = site.post("/completion", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in response.text
    *chunks, last = events(response)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"] == " wörld!"
    assert [chunk["content"] for chunk in chunks][:3] == [" ", "w", "ö"]
    assert chunks[2]["tokens"] == list("ö".encode())
    assert not any(chunk["stop"] for chunk in chunks)
    said = [entry for chunk in chunks for entry in chunk["completion_probabilities"]]
    assert said == whole["completion_probabilities"]
    assert (last["stop"], last["content"], last["tokens"], last["stop_type"]) == (True, "", [], "eos")
    assert set(last) == KEYS


@pytest.mark.parametrize(("path", "text"), [("/completion", "content"), ("/v1/completions", "text")])
def test_what_was_held_back_comes_at_the_end(site: Site, path: str, text: str) -> None:
    """A stop string had begun, and half a character came: both are shown, once."""
    site.engine.answer = lambda request: b"ab!\xc3"
    chunks = events(site.post(path, {"prompt": "Hi", "stream": True, "stop": "!x", "max_tokens": 4}))
    parts = [(chunk["choices"][0] if "choices" in chunk else chunk)[text] for chunk in chunks]
    assert "".join(parts) == "ab!\ufffd"


def test_progress_and_timings_in_a_stream(site: Site) -> None:
    body = {"prompt": "Hi", "stream": True, "n_predict": 1, "return_progress": True, "timings_per_token": True}
    progress, token, _ = events(site.post("/completion", body))
    assert progress["prompt_progress"] == {"total": 3, "cache": 1, "processed": 3, "time_ms": 250}
    assert token["timings"]["predicted_n"] == 1


def test_several_prompts_and_continuations(site: Site) -> None:
    answers = site.post("/completions", {"prompt": ["a", "b"], "n": 2, "seed": 5, "n_predict": 1}).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["prompt"] for answer in answers] == ["<bos>a"] * 2 + ["<bos>b"] * 2
    assert [answer["generation_settings"]["seed"] for answer in answers] == [5, 6, 5, 6]
    streamed = events(site.post("/completion", {"prompt": ["a", "b"], "n_predict": 2, "stream": True}))
    for i in (0, 1):
        assert "".join(chunk["content"] for chunk in streamed if chunk["index"] == i) == " w"


def test_chosen_fields(site: Site) -> None:
    fields = ["content", "timings/cache_n", "generation_settings/n_predict", "no/such"]
    answer = site.post("/completion", {"prompt": "a", "n_predict": 1, "response_fields": fields}).json()
    assert answer == {"content": " ", "timings/cache_n": 1, "generation_settings/n_predict": 1}


def test_no_token_at_all(site: Site) -> None:
    answer = site.post("/completion", {"prompt": "a", "n_predict": 0}).json()
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Field 'prompt': Field required"),
        ({"prompt": 5}, '"prompt" elements must be a string'),
        ({"prompt": []}, '"prompt" must not be empty'),
        ({"prompt": [5, []]}, '"prompt" elements must be'),
        ({"prompt": [True]}, '"prompt" elements must be'),
        ({"prompt": [99999]}, "Prompt contains invalid tokens"),
        ({"prompt": [-1]}, "Prompt contains invalid tokens"),
        ({"prompt": ["x"] * 300}, "300 prompts"),
        ({"prompt": "x", "n_predict": "a"}, "Field 'n_predict': type must be number, but is string"),
        ({"prompt": "x", "n_predict": -2}, "Field 'n_predict': Value must be between -1 <= value <= 2147483647"),
        ({"prompt": "x", "n_predict": 2.5}, "Field 'n_predict': type must be a whole number"),
        ({"prompt": "x", "n_discard": -1}, "Field 'n_discard': Value must be between 0"),
        ({"prompt": "x", "n_keep": -(2**31)}, "Field 'n_keep': Value must be between -1"),
        ({"prompt": "x", "temperature": True}, "Field 'temperature': type must be number, but is boolean"),
        ({"prompt": "x", "temperature": 1e39}, "temperature is"),
        ({"prompt": "x", "top_p": 7}, "top_p is 7.0; from 0.0 to 1.0 is expected"),
        ({"prompt": "x", "stop": [""]}, "Field 'stop': an empty string"),
        ({"prompt": "x", "stop": 3}, "Field 'stop': type must be a string or an array of strings"),
        ({"prompt": "x", "stop": ["a"] * 300}, "300 strings"),
        ({"prompt": "x", "logit_bias": [[1]]}, "each entry must be a pair"),
        ({"prompt": "x", "logit_bias": [[1, "a"]]}, "a bias must be a number or false, but is string"),
        ({"prompt": "x", "logit_bias": [[[], 1]]}, "a token must be an id or a text, but is array"),
        ({"prompt": "x", "samplers": "k?"}, "no sampler has the letter '?'"),
        ({"prompt": "x", "id_slot": 4}, "Field 'id_slot'"),
        ({"prompt": "x", "n_cmpl": 5}, "Field 'n_cmpl': Value must be between 1 <= value <= 4, but got 5"),
        ({"prompt": "x", "grammar": "nothing"}, "the grammar has no rule"),
        ({"prompt": "x", "grammar": "root ::= x", "json_schema": {}}, "not both"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_reason(site: Site, body: Any, said: str) -> None:
    answer = message(site.post("/completion", body))
    assert answer.startswith("400 invalid_request_error: ")
    assert said in answer
    assert not site.engine.handles


@pytest.mark.parametrize("field", [{"lora": [{"id": 0}]}, {"n_cache_reuse": 3}, {"grammar_lazy": True}])
def test_what_is_not_there_is_refused_by_name(site: Site, field: dict[str, Any]) -> None:
    answer = message(site.post("/completion", {"prompt": "x", **field}))
    assert answer.startswith("501 not_supported_error: ")
    assert next(iter(field)) in answer


@pytest.mark.parametrize(("n", "status"), [(127, 200), (128, 400), (129, 400)])
def test_prompts_at_the_end_of_the_context(site: Site, n: int, status: int) -> None:
    response = site.post("/completion", {"prompt": [65] * n})
    assert response.status_code == status
    if status == 400:
        text = f"request ({n} tokens) exceeds the available context size (128 tokens), try increasing it"
        assert response.json()["error"] == {
            "code": 400, "message": text, "type": "exceed_context_size_error", "n_prompt_tokens": n, "n_ctx": 128,
        }  # fmt: skip
    assert site.post("/completion", {"prompt": [65]}).status_code == 200


def test_grammars_reach_the_engine(site: Site) -> None:
    site.post("/completion", {"prompt": "x", "grammar": "root ::= x"})
    site.post("/completion", {"prompt": "x", "json_schema": {"type": "object"}})
    assert [handle.request.grammar for handle in site.engine.handles] == [
        ("gbnf", "root ::= x"),
        ("schema", {"type": "object"}),
    ]


def test_a_gap_is_filled(site: Site) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"filename": "f", "text": "t"}]}
    site.post("/infill", body)
    extra = list(b"\n\n--- f ---\n\nt")
    assert site.engine.handles[0].request.prompt_ids == [BOS, *extra, 258, *b"ac", 259, *b"b", 260]


def test_texts_and_ids(site: Site) -> None:
    assert site.post("/tokenize", {"content": "é<eos>"}).json() == {"tokens": [195, 169, EOS]}
    plain = site.post("/tokenize", {"content": "<eos>", "parse_special": False, "add_special": True}).json()
    assert plain == {"tokens": [BOS, *b"<eos>"]}
    pieces = site.post("/tokenize", {"content": "aé", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert site.post("/detokenize", {"tokens": [97, 195, 169, EOS]}).json() == {"content": "aé<eos>"}
    assert "no token of this model" in message(site.post("/detokenize", {"tokens": [999]}))
    assert site.post("/tokenize", {}).json() == {"tokens": []}
    text = site.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert text == {"prompt": "<user>x<assistant>"}


def test_an_engine_that_cannot(site: Site) -> None:
    from llmkit.errors import NumericsError

    site.engine.fails_with = NumericsError("no numbers", "Do something.")
    assert message(site.post("/completion", {"prompt": "x"})) == "500 server_error: no numbers. Do something."
    assert events(site.post("/completion", {"prompt": "x", "stream": True}))[-1]["error"]["code"] == 500


def test_a_request_that_takes_too_long(site: Site) -> None:
    from llmkit.errors import RequestTimeoutError

    site.engine.fails_with = RequestTimeoutError("it was not through in 3 s")
    response = site.post("/v1/completions", {"prompt": "x"})
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
    assert site.engine.handles[0].request.deadline_s == 3600


def test_a_full_queue(site: Site) -> None:
    site.engine.n_queue = 0
    for more in ({}, {"stream": True}):
        response = site.post("/completion", {"prompt": "x", **more})
        assert message(response).startswith("503 unavailable_error: 0 requests are waiting")
        assert response.headers["retry-after"] == "3"
