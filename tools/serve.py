"""`llmkit serve`: a model behind HTTP, as llama.cpp's server and OpenAI's API have it.

Owns the options and what they come to. The server is llmkit/serving's, loading is tools/_serve_load.py's.
"""

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from llmkit.engine.scheduling.requests import EngineParams
from llmkit.errors import UsageError
from llmkit.files.json_text import parse_json
from llmkit.params import ContextParams, SamplingParams

from . import _options as options
from . import _serve_options as more
from ._sampling_options import StopTexts, with_sampling

if TYPE_CHECKING:
    from llmkit.serving.settings import ServeSettings

FLASH = ("auto", "on", "1", "-1", "true", "enabled")
AUTO_SLOTS = 4
SLOT_ROUNDING = 256
_NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")


@dataclass(frozen=True)
class ServeRequest:
    """What is computed with; how it is offered is in ServeSettings."""

    model: str | None = None
    context: ContextParams = field(default_factory=ContextParams)
    engine: EngineParams = field(default_factory=EngineParams)
    per_slot: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    template: str | None = None
    template_file: str | None = None
    jinja: bool = True
    public_prefixes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


@with_sampling
def serve_cli(
    *,
    model: options.ModelOption = None,
    host: more.HostOption = "127.0.0.1",
    port: more.PortOption = 8080,
    n_ctx: options.CtxSizeOption = 0,
    n_parallel: more.ParallelOption = -1,
    unified: more.UnifiedOption = None,
    n_ctx_slot: more.PerSlotOption = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    n_threads: options.ThreadsOption = 0,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    flash_attn: more.FlashOption = "auto",
    swa_full: options.SwaFullOption = False,
    cache_prompt: more.CachePromptOption = True,
    cache_ram: more.CacheRamOption = 8192,
    public_prefix: more.PublicOption = None,
    slot_save_path: more.SlotPathOption = None,
    context_shift: more.ShiftOption = False,
    n_queue: more.QueueOption = 512,
    api_key: more.KeyOption = None,
    api_key_file: more.KeyFileOption = None,
    api_prefix: more.PrefixOption = "",
    alias: more.AliasOption = None,
    slots: more.SlotsOption = True,
    metrics: more.MetricsOption = False,
    props: more.PropsOption = False,
    webui: more.WebuiOption = True,
    chat_template: more.TemplateOption = None,
    chat_template_file: more.TemplateFileOption = None,
    chat_template_kwargs: more.TemplateArgsOption = None,
    jinja: more.JinjaOption = True,
    prefill_assistant: more.PrefillOption = True,
    request_templates: more.RequestTemplatesOption = False,
    timeout: more.TimeoutOption = 3600.0,
    drain_timeout: more.DrainOption = 30.0,
    sse_ping_interval: more.PingOption = 30.0,
    max_body: more.MaxBodyOption = 8 << 20,
    cors_origins: more.CorsOption = "*",
    ssl_key_file: more.SslKeyOption = None,
    ssl_cert_file: more.SslCertOption = None,
    n_predict: options.PredictOption = -1,
    n_keep: more.KeepOption = 0,
    sampling: SamplingParams,
    stops: StopTexts,
    escape: options.EscapeOption = True,
    overrides: options.OverrideOption = None,
) -> int:
    """Serve a model over HTTP: llama.cpp's routes and OpenAI's, at http://127.0.0.1:8080 unless told otherwise.

    What was computed of a prompt is kept and found again by every later request. Options of sampling are the defaults
    of requests that say nothing.
    """
    _check_installed()
    from llmkit.serving.auth import read_keys
    from llmkit.serving.settings import ServeSettings
    from llmkit.serving.slot_files import check_folder

    if flash_attn not in FLASH:
        raise UsageError(f"-fa is {flash_attn!r}; on or auto is expected", "attention is always of the flash kind")
    if public_prefix and cache_ram == 0:
        raise UsageError("--cache-ram 0 keeps nothing, so there can be no --public-prefix", "Leave one of them out.")
    settings = ServeSettings(
        hosts=_listed(host, "--host"),
        port=port,
        api_prefix=api_prefix,
        api_keys=read_keys(api_key or (), api_key_file),
        aliases=_listed(alias, "--alias") if alias is not None else (),
        slots=slots,
        metrics=metrics,
        props=props,
        webui=webui,
        slot_save_path=None if slot_save_path is None else check_folder(slot_save_path),
        cache_prompt=cache_prompt and cache_ram != 0,
        n_predict=n_predict,
        n_keep=n_keep,
        prefill_assistant=prefill_assistant,
        request_templates=request_templates,
        template_kwargs=_template_kwargs(chat_template_kwargs),
        timeout_s=timeout,
        drain_timeout_s=drain_timeout,
        sse_ping_s=sse_ping_interval,
        max_body_bytes=max_body,
        cors_origins=_listed(cors_origins, "--cors-origins"),
        ssl_key_file=ssl_key_file,
        ssl_cert_file=ssl_cert_file,
    )
    engine = EngineParams(
        n_queue=n_queue, cache_prompt=cache_ram != 0, tree_bytes=tree_bytes(cache_ram),
        context_shift=context_shift,
    )  # fmt: skip
    context = ContextParams(n_ctx, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full)
    context, engine, per_slot = share_out(context, engine, n_parallel, unified, n_ctx_slot)
    return serve(
        ServeRequest(
            model, context, engine, per_slot, sampling, stops.all, chat_template, chat_template_file, jinja,
            tuple(public_prefix or ()), tuple(overrides or ()),
        ),
        settings,
    )  # fmt: skip


def serve(request: ServeRequest, settings: "ServeSettings") -> int:
    """Serves until a signal comes; the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    from llmkit.files.models_table import resolve_model
    from llmkit.serving.server import run_server

    from ._serve_load import load

    resolve_model(request.model)  # what is wrong with -m is said before anybody is let in
    for path in request.public_prefixes:
        if not Path(path).is_file():
            raise UsageError(f"--public-prefix {path} is no file")
    return run_server(settings, lambda stack, deliver: load(request, settings, stack, deliver))


def share_out(
    context: ContextParams, engine: EngineParams, n_parallel: int, unified: bool | None, n_ctx_slot: int
) -> tuple[ContextParams, EngineParams, bool]:
    """The context and engine for so many slots; whether each slot's part is known only when the context is.

    As in llama.cpp, a given number of slots divides -c, each part a multiple of 256, unless the memory is unified.
    """
    n_slots = AUTO_SLOTS if n_parallel == -1 else n_parallel
    if n_slots < 1:
        raise UsageError(f"-np is {n_parallel}; at least 1 is expected", "-1 takes 4.")
    if n_ctx_slot < 0:
        raise UsageError(f"--kv-unified-per-slot is {n_ctx_slot}; at least 0 is expected")
    shared = n_parallel == -1 or n_ctx_slot > 0 if unified is None else unified
    if n_ctx_slot and not shared:
        raise UsageError("--kv-unified-per-slot needs the memory to be shared", "Leave out --no-kv-unified.")
    n_ctx = context.n_ctx
    if n_ctx_slot and not n_ctx:
        n_ctx = n_slots * n_ctx_slot
    elif not shared and n_ctx and n_slots > 1:
        n_ctx_slot = -(-n_ctx // (n_slots * SLOT_ROUNDING)) * SLOT_ROUNDING
        n_ctx = n_slots * n_ctx_slot
    context = replace(context, n_ctx=n_ctx, n_seq_max=n_slots)
    return context, replace(engine, n_slots=n_slots, n_ctx_slot=n_ctx_slot), not shared and not n_ctx


def tree_bytes(cache_ram: int) -> int:
    """What prefixes may keep, in bytes; 0 for all there is. `--cache-ram 0` shares nothing at all."""
    if cache_ram < -1:
        raise UsageError(f"--cache-ram is {cache_ram}; MiB are expected", "-1 takes all that -c has, 0 keeps nothing.")
    return max(0, cache_ram) << 20


def _check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        names = ", ".join(missing).replace("_", "-")
        raise UsageError(
            f"llmkit serve needs packages that are not installed: {names}", "pip install 'llmkit[serve]' installs them"
        )


def _listed(text: str, option: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in parts:
        raise UsageError(f"{option} is {text!r}, which has an empty part", "Write names with commas between them.")
    return parts


def _template_kwargs(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs is no JSON: {error}", """Write '{"name": value}'.""") from None
    if not isinstance(value, dict):
        raise UsageError("--chat-template-kwargs is no JSON object", """Write '{"name": value}'.""")
    return value
