"""`llmkit pull hf:USER/REPO[:QUANT]` and `run -hf` against a server of the test's own that plays the hub."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.files import http_fetch
from llmkit.files.hub import HubModel, choose_files
from llmkit.files.models_table import resolve_model
from tests.files.raw_gguf import gguf, tensor
from tests.files.test_gguf_split import split
from tests.files.web_server import Web, serve_web
from tests.make_models import TinyModel
from tests.paths import REPO_ROOT
from tests.tools.in_process import Finished, run_llmkit
from tests.tools.test_pull_url import kept, refused

DATA = {name: gguf(tensors=[tensor(dims=(25_000 + n,))], n_data=100_032) for n, name in enumerate(["Q4_K_M", "Q8_0"])}
REVISION = "c" * 40


def publish(web: Web, repo: str, files: dict[str, bytes]) -> None:
    """Let the hub have a repository."""
    siblings = []
    for name, data in files.items():
        web.files[f"/{repo}/resolve/{REVISION}/{name}"] = data
        lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        siblings.append({"rfilename": name, "size": len(data), "lfs": lfs})
    info = {"id": repo, "sha": REVISION, "siblings": siblings}
    body = json.dumps(info).encode()
    web.answers[f"/api/models/{repo}"] = (200, {"Content-Type": "application/json"}, body)


@pytest.fixture
def hub(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(http_fetch, "PAUSE_S", 0.0)
    with serve_web() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.base)
        publish(
            server, "me/m-GGUF", {"README.md": b"hello", **{f"m-{quant}.gguf": data for quant, data in DATA.items()}}
        )
        yield server


def pulled(done: Finished) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.rstrip("\n"))


@pytest.mark.parametrize(("quant", "name"), [("", "Q4_K_M"), (":Q8_0", "Q8_0"), (":q8_0", "Q8_0")])
def test_pull_and_use(hub: Web, quant: str, name: str) -> None:
    address = f"hf:me/m-GGUF{quant}"
    assert "run `llmkit pull hf:me/m-GGUF" in refused(run_llmkit("pull", address, "--offline"))
    path = pulled(run_llmkit("pull", address))
    assert path.name == f"m-{name}.gguf"
    assert path.read_bytes() == DATA[name]
    assert resolve_model(address) == path
    n_seen = len(hub.seen)
    assert pulled(run_llmkit("pull", address, "--offline")) == path
    assert len(hub.seen) == n_seen == 2  # the list and the file: nothing else is asked or told
    assert pulled(run_llmkit("pull", address)) == path
    assert len(hub.seen) == n_seen + 1
    answer = json.loads(run_llmkit("pull", "-q", "--json", address).stdout)
    assert answer == {"name": address, "path": str(path), "files": [str(path)], "size": len(DATA[name])}
    assert run_llmkit("pull", "--rm", address).returncode == 0
    assert not path.parent.exists()


def test_a_process_of_its_own_asks_for_no_more(hub: Web) -> None:
    """huggingface_hub, freshly imported, tells nobody what it does."""
    command = [sys.executable, "-m", "llmkit", "pull", "-q", "hf:me/m-GGUF"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    asked = [path.partition("?")[0] for path, _ in hub.seen]
    assert asked == ["/api/models/me/m-GGUF", f"/me/m-GGUF/resolve/{REVISION}/m-Q4_K_M.gguf"]


def test_the_environment_says_offline(hub: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pulled(run_llmkit("pull", "hf:me/m-GGUF"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.seen.clear()
    assert pulled(run_llmkit("pull", "hf:me/m-GGUF")) == path
    assert "has not been fetched yet" in refused(run_llmkit("pull", "hf:me/m-GGUF:Q8_0"))
    assert hub.seen == []


def test_a_new_revision_takes_the_old_ones_place(hub: Web) -> None:
    path = pulled(run_llmkit("pull", "hf:me/m-GGUF"))
    publish(hub, "me/m-GGUF", {"m-Q4_K_M.gguf": DATA["Q8_0"]})
    assert pulled(run_llmkit("pull", "hf:me/m-GGUF")) == path
    assert path.read_bytes() == DATA["Q8_0"]


def test_what_is_not_what_the_hub_lists(hub: Web, temp_cache: Path) -> None:
    place = f"/me/m-GGUF/resolve/{REVISION}/m-Q4_K_M.gguf"
    hub.files[place] = DATA["Q4_K_M"][:-1] + b"x"
    assert "has SHA-256" in refused(run_llmkit("pull", "hf:me/m-GGUF"))
    hub.files[place] = DATA["Q4_K_M"][:-1]
    assert "were announced" in refused(run_llmkit("pull", "hf:me/m-GGUF"))
    assert not [name for name in kept(temp_cache) if name.endswith(".gguf")]


def test_it_goes_on_without_an_etag(hub: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's SHA-256 says in the end that the pieces fit."""
    hub.etag, hub.cut_after, hub.n_cuts = "", 30_000, 1
    monkeypatch.setattr(http_fetch, "TRIES", 1)
    assert "the connection ended after 30000 of" in refused(run_llmkit("pull", "hf:me/m-GGUF"))
    assert pulled(run_llmkit("pull", "hf:me/m-GGUF")).read_bytes() == DATA["Q4_K_M"]
    assert hub.ranges() == ["", "", "", "bytes=30000-"]


def test_the_token_goes_to_the_hub_alone(hub: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to where the hub redirects to."""
    hub.allowed = lambda headers: headers.get("authorization") == "Bearer hf_secret"
    assert "401" in refused(run_llmkit("pull", "hf:me/m-GGUF"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pulled(run_llmkit("pull", "hf:me/m-GGUF"))
    assert all("authorization" in headers for _, headers in hub.seen[-2:])
    with serve_web() as elsewhere:
        place = f"/me/m-GGUF/resolve/{REVISION}/m-Q8_0.gguf"
        elsewhere.files["/blob"] = DATA["Q8_0"]
        hub.answers[place] = (302, {"Location": elsewhere.base + "/blob"}, b"")
        pulled(run_llmkit("pull", "hf:me/m-GGUF:Q8_0"))
        assert [path for path, headers in elsewhere.seen if "authorization" not in headers] == ["/blob"]
        assert len(elsewhere.seen) == 1


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "there is no repository me/x at "),
        (401, "RepoNotFound", "there is no repository me/x at "),
        (403, "GatedRepo", "me/x is gated: the hub does not let you in"),
        (403, "", "says 403"),
        (500, "", "says 500"),
    ],
)
def test_what_the_hub_refuses(hub: Web, status: int, code: str, words: str) -> None:
    hub.answers["/api/models/me/x"] = (status, {"X-Error-Code": code} if code else {}, b"{}")
    said = refused(run_llmkit("pull", "hf:me/x"))
    assert words in said
    assert "hint: " in said


def test_no_network(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "cannot reach http://127.0.0.1:1" in refused(run_llmkit("pull", "hf:me/m-GGUF"))


def test_a_split_model_runs_by_hf(hub: Web, temp_cache: Path, tmp_path: Path) -> None:
    parts = split(tmp_path, TinyModel(), "m-Q5_K_M")
    publish(hub, "me/split", {f"Q5_K_M/{part.name}": part.read_bytes() for part in parts})
    path = pulled(run_llmkit("pull", "hf:me/split:Q5_K_M"))
    assert kept(temp_cache) == {part.name for part in parts}
    assert path.parent.name == "Q5_K_M"
    run = ["--ids", "1,2", "-n", "2", "--temp", "0", "-q"]
    texts = [run_llmkit("run", *model, *run) for model in (["-hf", "me/split"], ["-m", str(path)])]
    assert texts[0].returncode == 0, texts[0].stderr
    assert texts[0].stdout == texts[1].stdout != ""
    assert "run `llmkit pull hf:me/other`" in refused(run_llmkit("run", "-hf", "me/other", *run))
    assert "there are two models" in refused(run_llmkit("run", "-hf", "me/split", "-m", "x", *run))


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        (["b-Q6_K.gguf", "a-F16.gguf"], "", "a-F16.gguf"),
        (["a-Q2_K.gguf", "a-q4_k_m.gguf"], "", "a-q4_k_m.gguf"),
        (["a-Q4_K.gguf", "a-Q4_K_M.gguf"], "Q4_K", "a-Q4_K.gguf"),
        (["a-F16.gguf", "b-Q8_0.gguf"], "", "b-Q8_0.gguf"),
        (["b-Q8_0.gguf", "c-Q4_K_M.gguf"], "", "c-Q4_K_M.gguf"),
        (["mtp-a-Q8_0.gguf", "z-Q8_0.gguf"], "Q8_0", "z-Q8_0.gguf"),
        (["a-mmproj-F16.gguf", "b-F16.gguf"], "F16", "b-F16.gguf"),
        (["Q4_K_M-x/m.gguf", "z.gguf"], "", "Q4_K_M-x/m.gguf"),
    ],
)
def test_the_choice(names: list[str], quant: str, chosen: str) -> None:
    assert choose_files(HubModel("me/m", quant), names) == [chosen]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": b""}, "me/x holds no GGUF model"),
        ({"../../m.gguf": b"GGUF"}, "me/x holds no GGUF model"),
        ({"/m.gguf": b"GGUF"}, "me/x holds no GGUF model"),
        ({"m-00001-of-00002.gguf": b"GGUF"}, "but not m-00002-of-00002.gguf"),
    ],
)
def test_what_a_repository_lacks(hub: Web, files: dict[str, bytes], words: str) -> None:
    publish(hub, "me/x", files)
    assert words in refused(run_llmkit("pull", "hf:me/x"))


def test_a_quant_that_is_not_there(hub: Web) -> None:
    said = refused(run_llmkit("pull", "hf:me/m-GGUF:Q3_K"))
    assert said.startswith("me/m-GGUF holds no Q3_K\nhint: It holds m-Q4_K_M.gguf, m-Q8_0.gguf")


@pytest.mark.parametrize("address", ["hf:", "hf:m", "hf:a/b/c", "hf:../x", "hf:a/b:", "hf:a/b:c/d"])
def test_misuse(hub: Web, address: str) -> None:
    assert "is no model of the hub" in refused(run_llmkit("pull", address))
    assert hub.seen == []
