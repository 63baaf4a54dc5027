"""What a person can say at the terminal that is no message: /help, /clear, /save and so on.

Owns the commands. A message cannot begin with a slash; with a blank before it, it can.
"""

import json
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.atomic import finished_file
from llmkit.files.json_text import parse_json
from llmkit.tokenizer.chat_messages import checked_messages

if TYPE_CHECKING:
    from ._chat import Chat

MAX_FILE_BYTES = 1 << 26


def run_command(talk: "Chat", line: str) -> bool:
    """Does what the line says; False if the conversation is to end. UsageError for what is no command."""
    name, _, rest = line[1:].partition(" ")
    if name in ("exit", "quit"):
        return False
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{close[0]}? " if close else ""
        raise UsageError(f"there is no command /{name}", f"{hint}/help lists them; a blank in front makes it a message")
    COMMANDS[name][1](talk, rest.strip())
    return True


def _say(text: str) -> None:
    """What was asked for is shown in quiet mode too."""
    report.stream_stderr(text + "\n")


def _help(talk: "Chat", rest: str) -> None:
    for name, (what, _) in COMMANDS.items():
        _say(f"  {'/' + name + (' ' + ARGUMENTS[name] if name in ARGUMENTS else ''):<15} {what}")
    _say("  /exit           ends the conversation, as Ctrl-D does; Ctrl-C stops an answer")
    _say("A line that ends in \\ goes on in the next.")


def _clear(talk: "Chat", rest: str) -> None:
    talk.conversation.clear()
    talk.last = None
    _say("begun anew")


def _regen(talk: "Chat", rest: str) -> None:
    if not any(message["role"] == "user" for message in talk.conversation.messages):
        raise UsageError("there is no message to answer yet")
    if talk.again() is None:
        report.note("stopped before the answer began: the old one stays")


def _undo(talk: "Chat", rest: str) -> None:
    if not talk.conversation.drop_turn():
        raise UsageError("there is no turn to take back")
    _say(f"taken back; {_count(talk)}")


def _save(talk: "Chat", rest: str) -> None:
    if not rest:
        raise UsageError("/save needs the name of a file", "For example /save talk.json")
    text = json.dumps({"messages": talk.conversation.messages}, ensure_ascii=False, indent=2) + "\n"
    with finished_file(Path(rest).expanduser()) as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    _say(f"{rest}: {_count(talk)}")


def _load(talk: "Chat", rest: str) -> None:
    if not rest:
        raise UsageError("/load needs the name of a file", "For example /load talk.json")
    try:
        with Path(rest).expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        messages = checked_messages(parse_json(raw.decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{rest} holds no conversation: {reason}", "A file that /save wrote is one.") from error
    talk.conversation.messages[:] = messages
    talk.last = None
    waits = bool(messages) and messages[-1]["role"] == "user"
    _say(f"{rest}: {_count(talk)}" + ("; /regen answers the last one" if waits else ""))


def _stats(talk: "Chat", rest: str) -> None:
    _say(f"messages    {_count(talk)}")
    _say(f"context     {talk.conversation.seq.n_tokens} of {talk.conversation.n_ctx} tokens")
    if talk.last is not None:
        prompt, generation = talk.last.prompt, talk.last.generation
        _say(f"last prompt {len(prompt.ids)} tokens, {prompt.n_cached} of them cached")
        _say(f"last answer {len(generation.ids)} tokens, ended by {generation.stop_reason}")
        for line in generation.timings.lines():
            _say(line)


def _multi(talk: "Chat", rest: str) -> None:
    talk.reader.multiline = not talk.reader.multiline
    _say(
        "a message now goes on over lines, up to one that ends in \\ (or Ctrl-D)"
        if talk.reader.multiline
        else "a message is one line again; \\ at its end continues it"
    )


def _prefill(talk: "Chat", rest: str) -> None:
    talk.prefill = rest
    _say(f"the next answer begins with {rest!r}" if rest else "the next answer begins freely")


def _count(talk: "Chat") -> str:
    n = len(talk.conversation.messages)
    return f"{n} message" + "s" * (n != 1)


COMMANDS: dict[str, tuple[str, Callable[["Chat", str], None]]] = {
    "help": ("shows this list", _help),
    "clear": ("begins anew, with the same system prompt", _clear),
    "save": ("writes the messages into a file, as JSON", _save),
    "load": ("takes the messages of such a file", _load),
    "regen": ("answers the last message anew", _regen),
    "undo": ("takes back the last message and its answer", _undo),
    "stats": ("shows tokens, how many of them were cached, and speed", _stats),
    "multi": ("switches to messages of several lines, and back", _multi),
    "prefill": ("sets how the next answer begins", _prefill),
}
ARGUMENTS = {"save": "FILE", "load": "FILE", "prefill": "TEXT"}
