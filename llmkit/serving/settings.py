"""What a server is started with; names and defaults are those of llama.cpp's flags.

Owns defaults and ranges. Knows nothing of where the values come from.
"""

from dataclasses import dataclass, field

from llmkit.errors import UsageError
from llmkit.params import check_range

MAX_BODY_BYTES = 8 << 20
"""The default of `--max-body`: a million token ids."""

MAX_BODY_S = 120.0


@dataclass(frozen=True)
class ServeSettings:
    """How the server answers; what it computes with is in ContextParams.

    hosts: addresses to listen at, or paths of Unix sockets ending in `.sock`. api_prefix stands before every path.
    api_keys: empty lets everybody in. slots, metrics, props: whether those routes answer; webui: whether / names the
    page that is to come. slot_save_path: the folder of slot files, None without. timeout_s: for a request from its
    arrival to its answer, and for writing a piece of that. drain_timeout_s: how long a stop waits for what runs.
    cors_origins: `*` or addresses. request_templates: whether a request may bring a chat template of its own.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    api_prefix: str = ""
    api_keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    slots: bool = True
    metrics: bool = False
    props: bool = False
    webui: bool = True
    slot_save_path: str | None = None
    cache_prompt: bool = True
    n_predict: int = -1
    n_keep: int = 0
    prefill_assistant: bool = True
    request_templates: bool = False
    template_kwargs: dict[str, object] = field(default_factory=dict)
    timeout_s: float = 3600.0
    drain_timeout_s: float = 30.0
    sse_ping_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    cors_origins: tuple[str, ...] = ("*",)
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535, "0 takes a free one")
        check_range("keep", self.n_keep, -1, None, "-1 keeps the whole prompt")
        check_range("timeout", self.timeout_s, 1, None, "it is in seconds")
        check_range("drain-timeout", self.drain_timeout_s, 0, None, "it is in seconds; 0 does not wait")
        check_range("max-body", self.max_body_bytes, 1024, None, "it is in bytes")
        if self.api_prefix and not self.api_prefix.startswith("/"):
            raise UsageError(f"--api-prefix is {self.api_prefix!r}", "It starts with /, such as /llm.")
        if self.api_prefix.endswith("/"):
            raise UsageError(f"--api-prefix is {self.api_prefix!r}", "It does not end with /.")
        if (self.ssl_key_file is None) != (self.ssl_cert_file is None):
            raise UsageError("TLS needs both --ssl-key-file and --ssl-cert-file", "Give both, or none.")
        if "" in self.api_keys:
            raise UsageError("an API key is empty", "Everybody would know it; leave it out.")

    @property
    def body_timeout_s(self) -> float:
        """For reading a body: a client may take its time for the answer, but not for the question."""
        return min(self.timeout_s, MAX_BODY_S)
