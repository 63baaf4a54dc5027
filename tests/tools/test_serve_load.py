"""What `llmkit serve` opens: the template, the size of a slot, types, what is refused. In this process, tiny models."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.scheduling.requests import CompletionRequest, Finished
from llmkit.errors import LlmkitError, UsageError
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from llmkit.serving.served import Served
from llmkit.serving.settings import ServeSettings
from llmkit.tools._serve_load import load
from llmkit.tools.serve import ServeRequest, share_out
from tests.make_models import make_model

OWN = "own {% for m in messages %}{{ m.content }}{% endfor %} <|im_start|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("served") / "tiny.gguf"
    return str(make_model(path, tokenizer="bpe", n_ctx_train=512, metadata={"tokenizer.chat_template": OWN}))


@contextmanager
def loaded(model: str, n_parallel: int = -1, aliases: tuple[str, ...] = (), **more: Any) -> Iterator[Served]:
    context, engine, per_slot = share_out(
        more.pop("context", ContextParams(n_threads=1)), more.pop("engine", ServeRequest().engine), n_parallel, None, 0
    )
    request = ServeRequest(model, context, engine, per_slot, **more)
    with ExitStack() as stack:
        yield load(request, ServeSettings(aliases=aliases), stack, lambda deliver: deliver())


def test_slots_and_names(model: str) -> None:
    with loaded(model) as served:
        assert (served.n_slots, served.n_ctx, served.ctx.n_ctx, served.name) == (4, 512, 512, "tiny.gguf")
    with loaded(model, 2, ("a", "b")) as served:
        assert (served.n_slots, served.n_ctx, served.name) == (2, 256, "a")
        assert all(slot.n_ctx == 256 for slot in served.engine.slots())
    kept = ContextParams(n_ctx=64, n_batch=48, n_ubatch=16, n_threads=1, type_k="bf16", type_v="f32")
    with loaded(model, context=kept, overrides=("llama.context_length=int:128",)) as served:
        assert (served.n_ctx, served.ctx.n_ubatch, served.ctx.n_threads) == (64, 16, 1)
        assert (served.ctx.params.type_k, served.ctx.params.type_v) == ("bf16", "f32")
        assert served.model.config.n_ctx_train == 128


def test_templates(model: str, tmp_path: Path) -> None:
    with loaded(model) as served:
        assert served.template.source == OWN
    with loaded(model, jinja=False) as served:  # its own is like chatml
        assert served.template.name == "chatml"
    with loaded(model, template="{{ 1 }}") as served:
        assert served.template.render([]) == "1"
    (tmp_path / "t").write_text("{{ 2 }}")
    with loaded(model, template_file=str(tmp_path / "t")) as served:
        assert served.template.render([]) == "2"
    for wrong in ({"template": "no such"}, {"template": "{{ 1 }}", "jinja": False}, {"template": "{% for"}):
        with pytest.raises(UsageError), loaded(model, **wrong):
            pass


def test_what_cannot_be_served(model: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="logit_bias names token"),
        loaded(model, sampling=SamplingParams(logit_bias=((10**6, 1.0),))),
    ):
        pass
    (tmp_path / "empty").write_text("")
    (tmp_path / "x.json").write_text('{"messages": 5}')
    (tmp_path / "long").write_text("word " * 2000)
    for name in ("empty", "x.json", "long", "missing"):
        with pytest.raises(LlmkitError), loaded(model, public_prefixes=(str(tmp_path / name),)):
            pass


def test_a_context_that_shifts(model: str) -> None:
    """A text longer than its slot, where that is wanted."""
    from dataclasses import replace

    engine = replace(ServeRequest().engine, context_shift=True)
    done: list[Finished] = []
    import threading

    over = threading.Event()
    with loaded(model, context=ContextParams(n_ctx=64, n_threads=1), engine=engine) as served:

        def on_event(event: Any) -> None:
            if isinstance(event, Finished):
                done.append(event)
                over.set()

        sampling = SamplingParams(temp=0, ignore_eos=True)
        served.engine.submit(CompletionRequest([1, 2, 3], GenerateParams(100), sampling), on_event)
        assert over.wait(60)
    assert done[0].truncated
    assert len(done[0].ids) == 100
