"""The process that renders chat templates: a template is a program, and it came with somebody's file.

Owns the Jinja2 environment, which is the one that transformers 5.24 sets up, and the limits that the operating system
holds a template to: whatever it does, it cannot take more memory or more computing than these. Run as a file by
chat_template.py; imports nothing of llmkit. Speaks JSON, a line a request and a line an answer.

    {"source": text}                        -> {"ok": ""}: it compiles
    {"source": text, "variables": {...}}    -> {"ok": rendered} or {"error": kind, "message": what is wrong}
"""

import datetime
import json
import math
import resource
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_MEMORY = 1 << 29
MAX_CPU_S = 1
MAX_CHARACTERS = 1 << 24
"""Of one rendered text. A context of a million tokens holds a third of that."""


class Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what an assistant wrote; the text within is shown as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        """Turns the block into a call, so that names set inside stay inside, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Callable[[], str]) -> str:
        return caller()


class Dict:
    """`dict(...)` of a template: it makes dictionaries, and is not Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As dict.fromkeys."""
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """`namespace(...)` of a template, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # any name may be a keyword, `self` too
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names may not begin with an underscore")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would write `<` as an escape, for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


@lru_cache(maxsize=1)
def environment() -> ImmutableSandboxedEnvironment:
    """The sandbox in which templates are compiled."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _to_json
    env.globals |= {
        "raise_exception": _raise_exception, "strftime_now": _strftime_now, "dict": Dict(), "namespace": Namespace
    }  # fmt: skip
    return env


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The answer to one request; no exception leaves it."""
    try:
        if _too_old(jinja2.__version__):
            return {"error": "jinja2", "message": jinja2.__version__}
        template = _compiled(request["source"])
        return {"ok": _rendered(template, request["variables"]) if "variables" in request else ""}
    except MemoryError:
        return {"error": "limit", "message": f"needs more than {MAX_MEMORY >> 20} MiB of memory"}
    except (RecursionError, OverflowError) as error:
        return {"error": "limit", "message": str(error)}
    except SecurityError as error:
        return {"error": "unsafe", "message": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "message": f"{error.message} (line {error.lineno})"}
    except jinja2.TemplateError as error:
        refused = type(error) is jinja2.TemplateError  # raise_exception's; Jinja's own are of subclasses
        return {"error": "refused" if refused else "failed", "message": str(error)}
    except Exception as error:  # the template is anybody's program: it may raise anything
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"[:1000]}


def _too_old(version: str) -> bool:
    """Whether this Jinja2 has known ways out of its sandbox: before 3.1.6."""
    return [int(part) for part in version.split(".")[:3] if part.isdigit()] < [3, 1, 6]


def _rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    parts, n_characters = [], 0
    for part in template.generate(variables):
        n_characters += len(part)
        if n_characters > MAX_CHARACTERS:
            raise OverflowError(f"makes a text of more than {MAX_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


def _limit_memory() -> None:
    """Address space, where the system counts it (macOS does not: there only time ends a template that fills memory)."""
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CORE):
        wanted = MAX_MEMORY if limit == resource.RLIMIT_AS else 0
        _, hard = resource.getrlimit(limit)
        try:
            resource.setrlimit(limit, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
        except (OSError, ValueError):
            continue


def _allow_cpu() -> None:
    """The kernel ends this process once it has computed for so long from now: one to two seconds, as it counts whole
    ones.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + MAX_CPU_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))


def main() -> None:
    """Answers until its input ends."""
    environment()
    _limit_memory()
    with open(1, "w", encoding="utf-8", closefd=False) as replies:
        for line in sys.stdin.buffer:
            _allow_cpu()
            replies.write(json.dumps(answer(json.loads(line))) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
