"""The options of `llmkit serve` that no other command has; names as in llama.cpp's server.

Owns the declarations only: ranges are in llmkit/serving/settings.py.
"""

from typing import Annotated, Any

import typer


def _option(kind: Any, *names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, metavar=metavar, help=help, **more)]


ParallelOption = _option(
    int, "-np", "--parallel", metavar="N", help="Texts computed at once (slots); -1: 4, which share all of -c."
)
UnifiedOption = _option(
    bool | None,
    "-kvu/-no-kvu",
    "--kv-unified/--no-kv-unified",
    help="Each slot may use all of -c, or only its part; without -np the first.",
    show_default=False,
)
PerSlotOption = _option(
    int, "--kv-unified-per-slot", metavar="N", help="Tokens that one slot may use at most; 0: no such bound."
)
FlashOption = _option(
    str, "-fa", "--flash-attn", metavar="on|auto", help="For llama.cpp's sake: attention is always of the flash kind."
)
QueueOption = _option(int, "--queue", metavar="N", help="Requests that may wait for a slot; more get a 503.")

HostOption = _option(
    str,
    "--host",
    metavar="HOST,...",
    help="Addresses to listen at, or paths of Unix sockets ending in .sock; 0.0.0.0 lets in the network.",
)
PortOption = _option(int, "--port", metavar="N", help="The port; 0: a free one, which is told on stderr.")
PrefixOption = _option(str, "--api-prefix", metavar="/PATH", help="What stands before every path.")
TimeoutOption = _option(
    float, "-to", "--timeout", metavar="S", help="Seconds that a request may take, and a client to take its answer."
)
DrainOption = _option(float, "--drain-timeout", metavar="S", help="Seconds that SIGTERM or Ctrl-C waits for what runs.")
PingOption = _option(
    float,
    "--sse-ping-interval",
    metavar="S",
    help="Seconds of silence until a stream says that it lives; -1: never.",
)
MaxBodyOption = _option(int, "--max-body", metavar="BYTES", help="The largest body; more gets a 413.")
CorsOption = _option(str, "--cors-origins", metavar="ORIGIN,...", help="Web pages that may ask; *: all.")
SslKeyOption = _option(str | None, "--ssl-key-file", metavar="FILE", help="The private key (PEM): serve HTTPS.")
SslCertOption = _option(str | None, "--ssl-cert-file", metavar="FILE", help="The certificate (PEM) to that key.")

KeyOption = _option(
    list[str] | None,
    "--api-key",
    metavar="KEY,...",
    help="Keys, one of which a client has to give. Each has a cache of its own.",
)
KeyFileOption = _option(
    str | None, "--api-key-file", metavar="FILE", help="Keys, one a line; lines with # are comments."
)
AliasOption = _option(
    str | None, "-a", "--alias", metavar="NAME,...", help="What clients are told the model's name is."
)
SlotsOption = _option(bool, "--slots/--no-slots", help="Answer GET /slots.")
MetricsOption = _option(bool, "--metrics", help="Answer GET /metrics.")
PropsOption = _option(bool, "--props", help="Let POST /props change how tokens are chosen by default.")
WebuiOption = _option(
    bool, "--webui/--no-webui", "--ui/--no-ui", help="/ says that the page is to come, or is not there (404)."
)

SlotPathOption = _option(
    str | None, "--slot-save-path", metavar="FOLDER", help="Where /slots/ID?action=save and restore keep their files."
)
CachePromptOption = _option(
    bool, "--cache-prompt/--no-cache-prompt", help="Reuse what was computed of a prompt; a request may say otherwise."
)
CacheRamOption = _option(
    int, "-cram", "--cache-ram", metavar="MIB", help="Memory that prefixes may keep, within -c; -1: all, 0: none."
)
KeepOption = _option(
    int, "--keep", metavar="N", help="Tokens that a context shift keeps at the beginning; -1: the prompt."
)
ShiftOption = _option(
    bool,
    "--context-shift/--no-context-shift",
    help="A text that fills its slot forgets its beginning instead of ending.",
)
PublicOption = _option(
    list[str] | None,
    "--public-prefix",
    metavar="FILE",
    help="A text (or .json with messages) that is computed at the start, kept, and found with every key.",
)

TemplateOption = _option(
    str | None, "--chat-template", metavar="NAME|TEXT", help="A built-in template, a variant of the file's, or Jinja."
)
TemplateFileOption = _option(str | None, "--chat-template-file", metavar="FILE", help="A file with a Jinja template.")
TemplateArgsOption = _option(
    str | None, "--chat-template-kwargs", metavar="JSON", help="An object: more that the template is to know."
)
JinjaOption = _option(
    bool, "--jinja/--no-jinja", help="Run the model's own template, or only take a built-in one that is like it."
)
PrefillOption = _option(
    bool,
    "--prefill-assistant/--no-prefill-assistant",
    help="A last message of the assistant is the beginning of the answer.",
)
RequestTemplatesOption = _option(
    bool, "--request-templates", help="Let requests bring a template; it runs apart, within limits."
)
