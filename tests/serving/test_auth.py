"""Who may ask, and what belongs to whom."""

from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from llmkit.engine.scheduling.requests import PUBLIC
from llmkit.errors import UsageError
from llmkit.serving import auth
from llmkit.serving.auth import KeyRing, read_keys
from llmkit.serving.errors import ApiError

ASK = {"prompt": "x", "n_predict": 1}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_without_a_key_nobody_gets_in(make_site: Any) -> None:
    site = make_site(api_keys=("one", "two"))
    for headers in ({}, bearer("three"), bearer(""), {"X-Api-Key": "One"}, {"Authorization": "Basic one"}):
        response = site.post("/completion", ASK, headers=headers)
        assert response.status_code == 401
        wanted = {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
        assert response.json()["error"] == wanted
        openai = site.post("/v1/completions", ASK, headers=headers).json()["error"]
        assert (openai["code"], openai["param"]) == ("invalid_api_key", None)
        assert site.get("/slots", headers=headers).status_code == 401
        assert site.get("/nope", headers=headers).status_code == 401
    assert not site.engine.handles


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/v1/models", "/models"])
def test_what_needs_no_key(make_site: Any, path: str) -> None:
    assert make_site(api_keys=("one",)).get(path).status_code == 200


def test_each_key_has_a_namespace_of_its_own(make_site: Any) -> None:
    site = make_site(api_keys=("one", "two"))
    for headers in (bearer("one"), {"X-Api-Key": "one"}, bearer("two")):
        salted = {**ASK, "namespace": "key-0", "cache_salt": PUBLIC, "user": PUBLIC}
        assert site.post("/completion", salted, headers=headers).status_code == 200
    first, again, other = (handle.request.namespace for handle in site.engine.handles)
    assert first == again != other
    assert PUBLIC not in (first, other)
    assert "one" not in first


def test_without_keys_there_is_one_namespace(make_site: Any) -> None:
    site = make_site()
    site.post("/completion", ASK, headers=bearer("anything"))
    assert site.engine.handles[0].request.namespace == PUBLIC


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In constant time: digests of one length, none left out."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    ring = KeyRing(["a", "a much longer key", "c"])
    for key in ("a", "c"):
        assert ring.namespace(Headers({"x-api-key": key}))
    with pytest.raises(ApiError):
        ring.namespace(Headers({"x-api-key": "ä" * 1000}))
    assert compared == [(32, 32)] * 9


def test_keys_are_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nfirst\n  second \n")
    assert read_keys(["a,b", "c", "a"], str(file)) == ("a", "b", "c", "first", "second")
    file.write_text("# none\n")
    for texts, path in (([], str(file)), ([], str(tmp_path)), (["a,,b"], None), ([""], None)):
        with pytest.raises(UsageError):
            read_keys(texts, path)
