"""Chat templates: messages in, the text that the model was trained on out.

Owns which template is taken, what is done to messages for a template that cannot take them as they are, and the process
that renders (chat_template_process.py), which is started at the first use and ended with this one. A template is a
program out of a file: there it cannot touch this process, nor take more than its limits. Knows nothing of tokens: the
text is to be encoded with parse_special and without a second BOS.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmkit.errors import ChatTemplateError, UsageError
from llmkit.files.gguf_reader import GgufFile
from llmkit.tokenizer.chat_messages import (
    Message,
    cut_at_mark,
    flat,
    mark_end,
    plain_messages,
    with_arguments,
    with_content,
    without_system,
)
from llmkit.tokenizer.chat_template_names import BUILT_IN

DEFAULT = "chatml"
MAX_WALL_S = 30.0
"""For a machine so busy that a template does not get its seconds of computing."""

_KEY = "tokenizer.chat_template"
_PROGRAM = Path(__file__).with_name("chat_template_process.py")
_HINT = "Give another with --chat-template or --chat-template-file."
_PROBE: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}


class ChatTemplate:
    """A template, compiled once. May be used from several threads: one renders at a time.

    source: Jinja2 text. bos_token, eos_token: the texts that it may use under these names. ChatTemplateError says what
    is wrong with it. `name` tells where it comes from.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str, name: str = "") -> None:
        self.source, self.name = source, name
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._takes: tuple[bool, bool] | None = None
        self._takes_arguments: str | None = None
        _ask({"source": source})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation, each message a mapping with `role` and mostly `content`.

        add_generation_prompt: with the beginning of an answer behind it. continue_final_message: the last message is
        the beginning of an answer, and the text ends with it. kwargs: more of what the template knows.
        ChatTemplateError if the template refuses the messages, fails, or meets a limit; nothing else is ever raised for
        what a template does.
        """
        plain = plain_messages(messages)
        if continue_final_message:
            add_generation_prompt = False
            wanted = mark_end(plain)
        system, parts = self._takes_system_and_parts()
        if not parts:
            plain = [flat(message) for message in plain]
        if not system:
            plain = without_system(plain)
        if any(message.get("tool_calls") for message in plain):
            plain = [with_arguments(message, self._kind_of_arguments()) for message in plain]
        variables = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt, **kwargs}
        text = self._render_any(plain, variables)
        return cut_at_mark(text, wanted) if continue_final_message else text

    @property
    def takes_system(self) -> bool:
        """Whether a system prompt shows in the text; where not, it goes in front of the first user's message."""
        return self._takes_system_and_parts()[0]

    def _render_any(self, messages: list[Message], variables: dict[str, Any]) -> str:
        """Where a message has no content, as one that calls a tool, a template may fail that takes an empty one."""
        try:
            return self._render(messages, variables)
        except ChatTemplateError:
            if all("content" in message for message in messages):
                raise
            return self._render([with_content(message) for message in messages], variables)

    def _render(self, messages: list[Message], variables: dict[str, Any]) -> str:
        try:
            return _ask({"source": self.source, "variables": {**self._tokens, **variables, "messages": messages}})
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"the messages are no plain data: {error}") from error

    def _takes_system_and_parts(self) -> tuple[bool, bool]:
        """Found out by rendering, once: what is dropped or refused does not show."""
        if self._takes is None:
            text = {"type": "text", "text": "partly"}
            self._takes = (
                self._shows("systemic", [{"role": "system", "content": "systemic"}, {"role": "user", "content": "x"}]),
                self._shows("partly", [{"role": "user", "content": [text]}], without="'type'"),
            )
        return self._takes

    def _kind_of_arguments(self) -> str:
        """How a tool call's arguments are to be given: as an `object`, as JSON `text`, or `any` if that is the same."""
        if self._takes_arguments is None:
            of_text, of_object = self._render_call('{"needle": 1}'), self._render_call({"needle": 1})
            if "needle" not in of_object or "{'needle'" in of_object:  # refused, dropped, or as Python writes it
                self._takes_arguments = "text" if "needle" in of_text else "any"
            else:
                self._takes_arguments = "any" if of_text == of_object else "object"
        return self._takes_arguments

    def _render_call(self, arguments: object) -> str:
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            return self._render([{"role": "user", "content": "x"}, answer], _PROBE)
        except ChatTemplateError:
            return ""

    def _shows(self, wanted: str, messages: list[Message], without: str = "\0") -> bool:
        try:
            text = self._render(messages, _PROBE)
        except ChatTemplateError:
            return False
        return wanted in text and without not in text


def load_chat_template(gguf: GgufFile, *, name_or_text: str | None = None, file: str | None = None) -> ChatTemplate:
    """The template to use with a model's file.

    name_or_text: the name of a variant that the file holds or of a built-in template, or a template itself. file: one
    that is read. Without either it is the file's own, else chatml. UsageError for a name that there is not,
    ChatTemplateError for a template that does not compile.
    """
    source, name = _chosen(gguf, name_or_text, file)
    bos, eos = (_token_text(gguf, key) for key in ("bos", "eos"))
    return ChatTemplate(source, bos_token=bos, eos_token=eos, name=name)


def has_chat_template(gguf: GgufFile) -> bool:
    """Whether the file brings one of its own."""
    return gguf.str(_KEY, None) is not None


def _chosen(gguf: GgufFile, name_or_text: str | None, file: str | None) -> tuple[str, str]:
    """A template's source and what to call it."""
    if name_or_text is not None and file is not None:
        raise UsageError("there are two templates, from --chat-template and --chat-template-file", "Give one of them.")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8"), file
        except (OSError, ValueError) as error:
            raise UsageError(f"the chat template {file} cannot be read: {error}", "Check the path.") from error
    if name_or_text is None:
        own = gguf.str(_KEY, None)
        return (BUILT_IN[DEFAULT], DEFAULT) if own is None else (own, "the model's own")
    if "{" in name_or_text:
        return name_or_text, "the text given"
    variant = gguf.str(f"{_KEY}.{name_or_text}", None)
    if variant is not None:
        return variant, name_or_text
    if name_or_text in BUILT_IN:
        return BUILT_IN[name_or_text], name_or_text
    variants = [key.removeprefix(f"{_KEY}.") for key in gguf.entries if key.startswith(f"{_KEY}.")]
    raise UsageError(
        f"there is no chat template {name_or_text!r}", f"There are {', '.join([*variants, *sorted(BUILT_IN)])}."
    )


def _token_text(gguf: GgufFile, name: str) -> str:
    """The text of the token that begins or ends a text; empty if the file has none."""
    tokens = gguf.strings("tokenizer.ggml.tokens", None)
    usual = {"bos": 1, "eos": 2} if gguf.str("tokenizer.ggml.model", "") == "llama" else {}
    id = gguf.u32(f"tokenizer.ggml.{name}_token_id", usual.get(name, 0xFFFFFFFF))
    return "" if tokens is None or id >= len(tokens) else tokens[id]


# -- the process --------------------------------------------------------------------------------------------------


class _Renderer:
    """The process, while it lives. ChatTemplateError if it cannot be started."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C at the terminal is not for it. -P: modules are not looked for beside the file.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ChatTemplateError(f"the process that renders chat templates does not start: {error}") from error

    @property
    def lives(self) -> bool:
        """Whether the process runs: somebody may have ended it meanwhile."""
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """The line that answers this line. ChatTemplateError, and the process is ended, if none comes."""
        assert self._process.stdin is not None
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(request)
                self._process.stdin.flush()
            return self._read_line()
        except BaseException:
            self.close()
            raise

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor, line, end = self._process.stdout.fileno(), bytearray(), time.monotonic() + MAX_WALL_S
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise ChatTemplateError(f"the chat template takes longer than {MAX_WALL_S:g} s", _HINT)
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise self._why_it_ended()
            line += piece
        return bytes(line)

    def _why_it_ended(self) -> ChatTemplateError:
        code = self._process.wait()
        if code >= 0:  # it could not even begin: no Jinja2, perhaps
            return ChatTemplateError(
                f"the process that renders chat templates ended with {code}",
                f"`{sys.executable} {_PROGRAM} < /dev/null` shows why.",
            )
        return ChatTemplateError("the chat template takes too long or too much memory, and was ended", _HINT)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was written last has no reader any more
                    pipe.close()


_lock = threading.Lock()
_renderers: list[_Renderer] = []


@atexit.register
def _end() -> None:
    while _renderers:
        _renderers.pop().close()


def _ask(request: dict[str, Any]) -> str:
    """What the process answers; ChatTemplateError for everything but a text."""
    line = json.dumps(request).encode() + b"\n"
    with _lock:
        if _renderers and not _renderers[-1].lives:
            _renderers.pop().close()
        if not _renderers:
            _renderers.append(_Renderer())
        try:
            reply = _renderers[-1].ask(line)
        except BaseException:
            _renderers.clear()
            raise
    found: dict[str, str] = json.loads(reply)
    if "ok" in found:
        return found["ok"]
    raise _error(found["error"], found["message"])


def _error(kind: str, message: str) -> ChatTemplateError:
    texts = {
        "jinja2": (f"Jinja2 {message} has known ways out of its sandbox", "Run `pip install -U 'jinja2>=3.1.6'`."),
        "syntax": (f"the chat template is no valid Jinja2: {message}", _HINT),
        "unsafe": (f"the chat template does what none may do: {message}", _HINT),
        "limit": (f"the chat template goes beyond its limits: {message}", _HINT),
        "refused": (f"the chat template refuses the messages: {message}", "Change the messages as it asks."),
        "failed": (f"the chat template fails on these messages: {message}", _HINT),
    }
    return ChatTemplateError(*texts[kind])
