"""The options of `llmkit serve`: what each comes to. What the settings do is tests/serving's."""

from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.scheduling.requests import EngineParams
from llmkit.errors import UsageError
from llmkit.params import ContextParams
from llmkit.tools import serve as serve_module
from llmkit.tools.serve import share_out, tree_bytes
from tests.tools.in_process import run_llmkit

MIB = 1 << 20


class Seen:
    """What `serve` was called with."""

    request: Any = None
    settings: Any = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()

    def serve(request: Any, settings: Any) -> int:
        found.request, found.settings = request, settings
        return 0

    monkeypatch.setattr(serve_module, "serve", serve)
    return found


# Options, and (where, field, value) that they come to.
OPTIONS: list[tuple[str, str, str, Any]] = [
    ("-m some.gguf", "request", "model", "some.gguf"),
    ("-hf user/repo", "request", "model", "hf:user/repo"),
    ("-c 4096", "request.context", "n_ctx", 4096),
    ("-c 4096 -np 3", "request.context", "n_ctx", 3 * 1536),
    ("-c 4096 -np 3", "request.engine", "n_ctx_slot", 1536),
    ("-c 4096 -np 3 -kvu", "request.engine", "n_ctx_slot", 0),
    ("-c 4096 -np 3 --kv-unified", "request.context", "n_ctx", 4096),
    ("-np 3", "request", "per_slot", True),
    ("-np 10", "request.engine", "n_slots", 10),
    ("--parallel 10", "request.context", "n_seq_max", 10),
    ("", "request.engine", "n_slots", 4),
    ("--kv-unified-per-slot 512", "request.context", "n_ctx", 2048),
    ("-b 128", "request.context", "n_batch", 128),
    ("-ub 64", "request.context", "n_ubatch", 64),
    ("-ctk q8_0", "request.context", "type_k", "q8_0"),
    ("-ctv q4_0", "request.context", "type_v", "q4_0"),
    ("-t 3", "request.context", "n_threads", 3),
    ("--swa-full", "request.context", "swa_full", True),
    ("-fa on", "request", "model", None),
    ("--no-cache-prompt", "settings", "cache_prompt", False),
    ("--no-cache-prompt", "request.engine", "cache_prompt", True),  # a request may still ask for it
    ("--cache-ram 0", "settings", "cache_prompt", False),
    ("--cache-ram 0", "request.engine", "cache_prompt", False),
    ("-cram 16", "request.engine", "tree_bytes", 16 * MIB),
    ("--cache-ram -1", "request.engine", "tree_bytes", 0),
    ("--context-shift", "request.engine", "context_shift", True),
    ("--queue 7", "request.engine", "n_queue", 7),
    ("--host 0.0.0.0,x.sock", "settings", "hosts", ("0.0.0.0", "x.sock")),
    ("", "settings", "hosts", ("127.0.0.1",)),
    ("--port 1234", "settings", "port", 1234),
    ("--api-key a,b --api-key c", "settings", "api_keys", ("a", "b", "c")),
    ("--api-prefix /llm", "settings", "api_prefix", "/llm"),
    ("--alias a,b", "settings", "aliases", ("a", "b")),
    ("--no-slots", "settings", "slots", False),
    ("--slots", "settings", "slots", True),
    ("--metrics", "settings", "metrics", True),
    ("--props", "settings", "props", True),
    ("--no-webui", "settings", "webui", False),
    ("--no-ui", "settings", "webui", False),
    ("--timeout 5", "settings", "timeout_s", 5.0),
    ("--drain-timeout 9", "settings", "drain_timeout_s", 9.0),
    ("--sse-ping-interval -1", "settings", "sse_ping_s", -1.0),
    ("--max-body 4096", "settings", "max_body_bytes", 4096),
    ("--cors-origins http://a,http://b", "settings", "cors_origins", ("http://a", "http://b")),
    ("--ssl-key-file k --ssl-cert-file c", "settings", "ssl_cert_file", "c"),
    ("--chat-template llama3", "request", "template", "llama3"),
    ("--chat-template-file f", "request", "template_file", "f"),
    ('--chat-template-kwargs {"a":1}', "settings", "template_kwargs", {"a": 1}),
    ("--no-jinja", "request", "jinja", False),
    ("--jinja", "request", "jinja", True),
    ("--no-prefill-assistant", "settings", "prefill_assistant", False),
    ("--request-templates", "settings", "request_templates", True),
    ("--public-prefix a --public-prefix b", "request", "public_prefixes", ("a", "b")),
    ("-n 9", "settings", "n_predict", 9),
    ("--keep 5", "settings", "n_keep", 5),
    (r"--stop a\n", "request", "stops", ("a\n",)),
    (r"--stop a\n --no-escape", "request", "stops", (r"a\n",)),
    ("--temp 0.25", "request.sampling", "temp", 0.25),
    ("--stop X -r Y", "request", "stops", ("X", "Y")),
    ("--override-kv a=int:1", "request", "overrides", ("a=int:1",)),
]


@pytest.mark.parametrize(("options", "where", "name", "value"), OPTIONS, ids=[f"{o[0]}:{o[2]}" for o in OPTIONS])
def test_options(seen: Seen, options: str, where: str, name: str, value: Any) -> None:
    done = run_llmkit("serve", *options.split())
    assert done.returncode == 0, done.stderr
    found: Any = seen
    for part in where.split("."):
        found = getattr(found, part)
    assert getattr(found, name) == value


def test_files_of_keys_and_slots(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# x\none\n")
    (tmp_path / "link").symlink_to(tmp_path)
    done = run_llmkit(
        "serve", "--api-key-file", str(tmp_path / "keys"), "--slot-save-path", str(tmp_path / "link"), "-v"
    )
    assert done.returncode == 0
    assert seen.settings.api_keys == ("one",)
    assert seen.settings.slot_save_path == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-np 0", "-np is 0"),
        ("-np -2", "-np is -2"),
        ("--port 70000", "port is 70000"),
        ("--timeout 0", "timeout is 0.0"),
        ("--max-body 10", "max-body is 10"),
        ("--api-prefix llm", "--api-prefix is 'llm'"),
        ("--api-prefix /llm/", "--api-prefix is '/llm/'"),
        ("--host a,,b", "empty part"),
        ("--alias a,", "empty part"),
        ("--api-key a,", "empty key"),
        ("--cache-ram -2", "--cache-ram is -2"),
        ("-fa off", "-fa is 'off'"),
        ("--cache-ram 0 --public-prefix x", "--cache-ram 0 keeps nothing"),
        ("--chat-template-kwargs x", "is no JSON"),
        ("--chat-template-kwargs []", "no JSON object"),
        ("--ssl-key-file k", "TLS needs both"),
        ("--kv-unified-per-slot 64 --no-kv-unified", "needs the memory to be shared"),
        ("--queue -1", "n_queue is -1"),
        ("-ctk q9", "type_k is 'q9'"),
        ("--top-p 2", "top_p is 2.0"),
    ],
)
def test_values_that_cannot_be(seen: Seen, options: str, said: str) -> None:
    done = run_llmkit("serve", *options.split())
    assert done.returncode == 1
    assert said in done.stderr
    assert seen.request is None


def test_llama_cpps_other_flags(seen: Seen) -> None:
    """Ignored with one notice, or refused by name."""
    done = run_llmkit("serve", *["-ngl", "99", "--mlock", "-sps", "0.5", "--threads-http", "4", "--no-warmup", "-cb"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ignored: ") == 1
    for flag in ("--lora x", "--mmproj x"):
        refused = run_llmkit("serve", *flag.split())
        assert refused.returncode == 1
        assert flag.split()[0] in refused.stderr


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
    monkeypatch.setattr(serve_module, "find_spec", lambda name: None if name == "prometheus_client" else object())
    done = run_llmkit("serve")
    assert done.returncode == 1
    assert "prometheus-client" in done.stderr
    assert "pip install 'llmkit[serve]'" in done.stderr


def test_sharing_out() -> None:
    context, engine = ContextParams(n_ctx=1000), EngineParams()
    one, params, later = share_out(context, engine, 1, None, 0)
    assert (one.n_ctx, params.n_ctx_slot, later) == (1000, 0, False)
    both, params, later = share_out(context, engine, 2, False, 0)
    assert (both.n_ctx, params.n_ctx_slot, later) == (1024, 512, False)
    bounded, params, _ = share_out(context, engine, 2, None, 300)
    assert (bounded.n_ctx, params.n_ctx_slot) == (1000, 300)
    with pytest.raises(UsageError):
        share_out(context, engine, 2, None, -1)
    assert tree_bytes(0) == tree_bytes(-1) == 0
