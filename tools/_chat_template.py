"""The chat template of a run, and `run --template`, which shows what it makes of messages and runs nothing.

Owns which template is taken and where the messages come from. Imports neither kernels nor a tokenizer.
"""

from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.json_text import parse_json
from llmkit.files.models_table import resolve_model
from llmkit.tokenizer.chat_template import ChatTemplate, has_chat_template, load_chat_template
from llmkit.tokenizer.chat_template_names import BUILT_IN

from ._chat_options import ChatOptions, at_terminal
from ._prompt import plain_text, read_prompt

if TYPE_CHECKING:
    from .run import Request


def template_of(gguf: GgufFile, chat: ChatOptions) -> ChatTemplate:
    """The template that the options mean; UsageError where --no-jinja rules it out."""
    if not chat.jinja:
        given = chat.template_file is not None or (chat.template is not None and chat.template not in BUILT_IN)
        if given or (chat.template is None and has_chat_template(gguf)):
            raise UsageError(
                "--no-jinja allows built-in chat templates only",
                f"Name one with --chat-template: {', '.join(BUILT_IN)}.",
            )
    return load_chat_template(gguf, name_or_text=chat.template, file=chat.template_file)


def show_template(request: "Request", chat: ChatOptions) -> int:
    """`run --template`: prints the prompt; the exit code, 0."""
    messages, tools = _messages(request, chat)
    with open_gguf(resolve_model(request.model)) as gguf:
        template = template_of(gguf, chat)
    prefilled = chat.prefill is None and bool(messages) and messages[-1].get("role") == "assistant"
    if chat.prefill is not None:
        prefilled = True
        messages = [
            *messages,
            {"role": "assistant", "content": plain_text(chat.prefill, "--prefill", escape=request.escape)},
        ]
    text = template.render(
        messages, tools=tools, add_generation_prompt=not prefilled, continue_final_message=prefilled, **chat.kwargs
    )
    if request.as_json:
        report.result_json({"template": template.name, "messages": messages, "prompt": text})
    else:
        report.result(text, end="\n" if at_terminal() and not text.endswith("\n") else "")
    return 0


def _messages(request: "Request", chat: ChatOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """The messages, and the tools if the JSON object has any: from -p, or as JSON from -f or what is piped in."""
    system = chat.system_prompt(escape=request.escape)
    first = [] if system is None else [{"role": "system", "content": system}]
    if request.prompt is not None:
        text = read_prompt(request.prompt, request.file, escape=request.escape)
        return [*first, {"role": "user", "content": text}], None
    from llmkit.tokenizer.chat_messages import checked_messages

    text = read_prompt(None, request.file, escape=False)
    try:
        value = parse_json(text)
        return [*first, *checked_messages(value)], value.get("tools") if isinstance(value, dict) else None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"these are no messages: {error}", 'Give -p TEXT, or JSON such as [{"role": "user", "content": "Hi"}].'
        ) from error
