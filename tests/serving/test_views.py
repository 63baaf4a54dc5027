"""What the server tells of itself: health, properties, models, slots, metrics, the cache."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmkit.engine.scheduling.requests import PUBLIC
from tests.serving.conftest import Site

# The names of llama-server b11434's metrics, less those of speculative decoding.
LLAMA_METRICS = {
    "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total",
    "tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max", "prompt_tokens_seconds",
    "predicted_tokens_seconds", "requests_processing", "requests_deferred", "n_busy_slots_per_decode",
}  # fmt: skip


def test_while_it_loads(site: Site) -> None:
    site.state.served = None
    for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/completion"), ("GET", "/slots")):
        response = site.request(method, path)
        error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
        assert response.status_code == 503
        assert response.json()["error"].items() >= (error if path != "/v1/models" else {"code": 503}).items()
        assert response.headers["retry-after"]
    assert "llmkit:ready 0.0" in site.get("/metrics").text


def test_properties(make_site: Any) -> None:
    props = make_site(slots=False).get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 128
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (props["bos_token"], props["eos_token"], props["chat_template"]) == ("<bos>", "<eos>", "fake")
    assert (props["endpoint_slots"], props["endpoint_props"], props["endpoint_metrics"]) == (False, False, True)


def test_properties_can_be_changed_if_that_is_wanted(make_site: Any) -> None:
    assert make_site().post("/props", {"temperature": 0}).status_code == 501
    site = make_site(props=True)
    assert site.post("/props", {"temperature": 0.25, "top_k": 3}).json() == {"success": True}
    shown = site.get("/props").json()
    assert shown["default_generation_settings"]["params"]["top_k"] == 3
    site.post("/completion", {"prompt": "x", "top_k": 9})
    sampling = site.engine.handles[0].request.sampling
    assert (sampling.temp, sampling.top_k) == (0.25, 9)
    shown["default_generation_settings"]["params"]["temperature"] = 1.5
    del shown["default_generation_settings"]["params"]["seed"]
    assert site.post("/props", shown).json() == {"success": True}
    assert site.get("/props").json()["default_generation_settings"]["params"]["temperature"] == 1.5
    assert site.post("/props", {"top_p": 9}).status_code == 400
    assert site.post("/props", {"seed": 1}).status_code == 400


def test_models(make_site: Any) -> None:
    models = make_site(aliases=("a", "b")).get("/v1/models").json()
    assert models["object"] == "list"
    item = models["data"][0]
    assert (item["aliases"], item["object"], item["owned_by"]) == (["a", "b"], "model", "llamacpp")
    assert set(item["meta"]) == {"vocab_type", "n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params", "size", "ftype"}


def test_slots(make_site: Any) -> None:
    site = make_site()
    idle = site.get("/slots").json()
    assert [slot["id"] for slot in idle] == [0, 1, 2, 3]
    assert idle[0] == {"id": 0, "n_ctx": 128, "speculative": False, "is_processing": False, "state": "idle"}
    assert make_site(slots=False).get("/slots").status_code == 501


def test_no_slot_is_free(site: Site) -> None:
    from llmkit.engine.scheduling.requests import CompletionRequest

    site.engine.gate.clear()
    for _ in range(4):
        site.engine.submit(CompletionRequest([1]), lambda event: None)
    while site.engine.n_open < 4 or site.engine._waiting:
        pass
    slots = site.get("/slots").json()
    assert all(slot["is_processing"] for slot in slots)
    assert set(slots[0]) >= {"id_task", "n_prompt_tokens", "n_prompt_tokens_processed", "params", "next_token"}
    assert site.get("/slots?fail_on_no_slot=1").status_code == 503
    site.engine.gate.set()


def test_metrics_are_prometheus(make_site: Any) -> None:
    site = make_site()
    response = site.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(response.headers["process-start-time-unix"]) > 1_000_000_000
    families = list(text_string_to_metric_families(response.text))
    names = {sample.name for family in families for sample in family.samples}
    assert {f"llamacpp:{name}" for name in LLAMA_METRICS} <= names
    values = {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
    assert values["llmkit:prefix_hit_rate"] == 0.75
    assert values["llmkit:first_token_seconds_count"] == 1
    assert "# TYPE llmkit:first_token_seconds histogram" in response.text
    assert 'llmkit:memory_cells{kind="full",state="peak"} 64.0' in response.text
    assert make_site(metrics=False).get("/metrics").status_code == 501
    assert site.get("/metrics?format=xml").status_code == 400


def test_metrics_as_json_are_the_same(site: Site) -> None:
    text = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(site.get("/metrics").text)
        for sample in family.samples
    }
    answer = site.get("/metrics?format=json").json()
    assert answer["state_cache"].items() >= {"hits": 3, "misses": 1, "hit_rate": 0.75}.items()
    samples = [sample for family in answer["metrics"].values() for sample in family["samples"]]
    assert {(s["name"], tuple(sorted(s["labels"].items()))): s["value"] for s in samples} == text


class FakeTree:
    """Three prefixes of three owners."""

    def __init__(self, own: str) -> None:
        self.owners = {1: own, 2: PUBLIC, 3: "key-other"}
        self.done: list[Any] = []

    def entries(self, namespace: str) -> list[Any]:
        return [
            SimpleNamespace(
                id=id, namespace=name, n_tokens=10 * id, bytes=100, n_sharers=1, hits=2, last_use=0.0, pinned=False,
                priority=0, is_point=True,
            )
            for id, name in self.owners.items()
            if name == namespace
        ]  # fmt: skip

    def remove(self, id: int) -> None:
        self.done.append(("remove", id))

    def pin(self, id: int) -> None:
        self.done.append(("pin", id))

    def unpin(self, id: int) -> None:
        self.done.append(("unpin", id))


def test_the_cache_is_each_keys_own(make_site: Any) -> None:
    site = make_site(api_keys=("one",))
    headers = {"X-Api-Key": "one"}
    from starlette.datastructures import Headers

    tree = site.engine.tree = FakeTree(site.state.keys.namespace(Headers(headers)))
    listed = site.get("/cache", headers=headers).json()["prefixes"]
    assert sorted((item["id"], item["public"], item["n_tokens"]) for item in listed) == [(1, False, 10), (2, True, 20)]
    assert set(listed[0]) >= {"bytes", "n_sharers", "hits", "idle_s", "pinned"}
    for id in (2, 3, 4):
        assert site.request("DELETE", f"/cache/{id}", headers=headers).status_code == 404
        assert site.post("/cache/pin", {"id": id}, headers=headers).status_code == 404
    for bad in ("x", "-1", "9" * 40, "1.0"):
        assert site.request("DELETE", f"/cache/{bad}", headers=headers).status_code == 404
    assert site.post("/cache/pin", {"id": 1}, headers=headers).json() == {"id": 1, "pinned": True}
    assert site.post("/cache/pin", {"id": 1, "pinned": False}, headers=headers).json()["pinned"] is False
    assert site.request("DELETE", "/cache/1", headers=headers).json() == {"id": 1, "removed": True}
    assert tree.done == [("pin", 1), ("unpin", 1), ("remove", 1)]


def test_a_prefix_of_the_path(make_site: Any) -> None:
    site = make_site(api_prefix="/llm", api_keys=("k",))
    assert site.get("/llm/health").status_code == 200
    assert site.get("/slots").status_code == 401
    assert site.get("/health", headers={"X-Api-Key": "k"}).status_code == 404
    assert site.get("/llm/openapi.json", headers={"X-Api-Key": "k"}).json()["paths"]["/llm/completion"]


def test_the_page_is_to_come(make_site: Any) -> None:
    assert make_site().get("/").status_code == 501
    assert make_site(webui=False).get("/").status_code == 404


def test_heads(site: Site) -> None:
    assert site.request("HEAD", "/health").status_code == 200


def test_nothing_waits_for_the_engine(site: Site) -> None:
    """Looks at the server are answered while a step is on."""

    def never(function: Any) -> Any:
        return asyncio.get_event_loop().create_future()

    site.engine.gate.clear()
    site.engine.call = never  # type: ignore[method-assign]
    for path in ("/health", "/slots", "/metrics", "/props", "/v1/models"):
        assert site.get(path).status_code == 200
    site.engine.gate.set()


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_the_document_names_the_bodies(site: Site, path: str) -> None:
    document = site.get("/openapi.json").json()
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["properties"]["n_predict"]["anyOf"][0]["minimum"] == -1
