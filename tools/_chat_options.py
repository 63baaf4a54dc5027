"""The options of conversations, and whether a run is one.

Owns their names, which are llama.cpp's where it has them, and what goes with what. `with_chat` gives them to a command.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.json_text import parse_json

from ._prompt import plain_text, read_prompt

if TYPE_CHECKING:
    from .run import Request


@dataclass(frozen=True)
class ChatOptions:
    """How to converse; see the options' help.

    typed: the fields that were given on the command line itself. A variable or a configuration file may hold a
    system prompt or a template for conversations, but makes none of a completion.
    """

    conversation: bool | None = None
    single_turn: bool = False
    system: str | None = None
    system_file: str | None = None
    template: str | None = None
    template_file: str | None = None
    template_kwargs: str | None = None
    jinja: bool = True
    prefill: str | None = None
    multiline: bool = False
    history: bool = True
    show_template: bool = False
    typed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.system is not None and self.system_file is not None:
            raise UsageError("there are two system prompts, from -sys and from -sysf", "Give one of them.")
        for text, option in ((self.template, "--chat-template"), (self.template_kwargs, "--chat-template-kwargs")):
            plain_text(text or "", option, escape=False)
        self.kwargs  # noqa: B018 (a wrong text is an error here, before a model is opened)

    @property
    def kwargs(self) -> dict[str, Any]:
        """What --chat-template-kwargs gives to the template."""
        try:
            value = parse_json("{}" if self.template_kwargs is None else self.template_kwargs)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--chat-template-kwargs is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise UsageError(
                "--chat-template-kwargs is no JSON object", """Write it as '{"enable_thinking": false}'."""
            )
        taken = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"} & set(value)
        if taken:
            raise UsageError(f"--chat-template-kwargs holds {sorted(taken)[0]!r}, which the conversation itself gives")
        return value

    @property
    def asked(self) -> str | None:
        """An option that was typed, changes something, and makes sense in conversations alone."""
        default = ChatOptions()
        changed = (name for name in _ALONE if name in self.typed and getattr(self, name) != getattr(default, name))
        return next((_ALONE[name] for name in changed), None)

    def system_prompt(self, *, escape: bool) -> str | None:
        """The text of -sys or -sysf."""
        if self.system is not None:
            return plain_text(self.system, "-sys", escape=escape)
        return None if self.system_file is None else read_prompt(None, self.system_file, escape=False)


_ALONE = {
    "single_turn": "-st", "system": "-sys", "system_file": "-sysf", "template": "--chat-template",
    "template_file": "--chat-template-file", "template_kwargs": "--chat-template-kwargs", "jinja": "--no-jinja",
    "prefill": "--prefill", "multiline": "-mli",
}  # fmt: skip
"""Fields whose options make a run a conversation."""


def is_conversation(request: "Request", chat: ChatOptions) -> bool:
    """Whether to converse: where asked for, and at a terminal without a prompt if the model has a template.

    UsageError for options that exclude each other.
    """
    if chat.conversation is False:
        if chat.asked:
            raise UsageError(f"{chat.asked} is for conversations, which -no-cnv switches off", "Leave one of them out.")
        return False
    if chat.conversation or chat.asked:
        _check_conversation(request)
        return True
    without_prompt = request.prompt is None and request.file is None and request.ids is None
    plain = request.n_parallel == 1 and request.n_logprobs is None and not request.as_json
    if not (without_prompt and plain and at_terminal()):
        return False
    if not _has_template(request):
        report.note("the model's file has no chat template; -cnv converses all the same, in chatml's form")
        return False
    return True


def at_terminal() -> bool:
    """Whether a person types and reads."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


def _check_conversation(request: "Request") -> None:
    wrong = {
        "--ids": request.ids is not None,
        "-np": request.n_parallel > 1,
        "--logprobs": request.n_logprobs is not None,
    }
    for name, is_given in wrong.items():
        if is_given:
            raise UsageError(f"{name} does not go with a conversation", "Leave it out, or add -no-cnv.")


def _has_template(request: "Request") -> bool:
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.files.models_table import resolve_model
    from llmkit.tokenizer.chat_template import has_chat_template

    with open_gguf(resolve_model(request.model)) as gguf:
        return has_chat_template(gguf)


# In the order of the help; named like the fields of ChatOptions.
_OPTIONS: dict[str, Any] = {
    "conversation": Annotated[
        bool | None,
        typer.Option(
            "-cnv/-no-cnv",
            "--conversation/--no-conversation",
            show_default=False,
            help="Converse, each message put into the model's chat template; by default at a terminal without a "
            "prompt, and with the options that follow.",
        ),
    ],
    "single_turn": Annotated[
        bool, typer.Option("-st", "--single-turn", help="One message (-p, -f or what is piped in), one answer.")
    ],
    "system": Annotated[
        str | None, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt of a conversation.")
    ],
    "system_file": Annotated[
        str | None, typer.Option("-sysf", "--system-prompt-file", metavar="FILE", help="Read it from FILE, verbatim.")
    ],
    "template": Annotated[
        str | None,
        typer.Option(
            "--chat-template", metavar="NAME|TEXT", help="Another chat template: a name, or a text with a { in it."
        ),
    ],
    "template_file": Annotated[
        str | None, typer.Option("--chat-template-file", metavar="FILE", help="Read the chat template from FILE.")
    ],
    "template_kwargs": Annotated[
        str | None,
        typer.Option("--chat-template-kwargs", metavar="JSON", help="An object with more of what the template reads."),
    ],
    "jinja": Annotated[
        bool, typer.Option("--jinja/--no-jinja", help="Run templates that come with a model; else built-in ones only.")
    ],
    "prefill": Annotated[
        str | None, typer.Option("--prefill", metavar="TEXT", help="How the next answer begins; the model goes on.")
    ],
    "multiline": Annotated[
        bool, typer.Option("-mli", "--multiline-input", help=r"A message goes on over lines, up to one that ends in \.")
    ],
    "history": Annotated[
        bool, typer.Option("--history/--no-history", help="Keep what is typed at the terminal, for the arrow keys.")
    ],
    "show_template": Annotated[
        bool, typer.Option("--template", help="Only print the prompt that the chat template makes.")
    ],
}  # fmt: skip


def with_chat(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command these options in the place of its parameter `chat: ChatOptions`."""
    own = inspect.signature(command).parameters
    defaults = ChatOptions()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        parameters += shared if name == "chat" else [parameter]

    @functools.wraps(command)
    def called(**given: Any) -> int:
        mine, context = {name: given.pop(name) for name in _OPTIONS}, given.pop("context")
        typed = frozenset(name for name in mine if _is_typed(context, name))
        return command(**given, chat=ChatOptions(**mine, typed=typed))

    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option's value comes from the command line, and not from a variable or a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
