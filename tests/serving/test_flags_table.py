"""docs/serve.md lists which flags of llama.cpp's server are ignored and which are refused.

`python -m tests.serving.test_flags_table` writes both tables into the page.
"""

import re
from pathlib import Path

from llmkit import cli
from llmkit.shell.llama_flags import CommandFlags, Flag
from tests.paths import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "serve.md"
TITLES = {"ignored": "taken with one notice, without effect", "refused": "refused by name"}


def rows(kind: str) -> str:
    """The rows of a table, one for each reason, without flags that serve has itself."""
    own = {name for option in cli._build("serve").options for name in (*option.opts, *option.secondary_opts)}
    flags: list[Flag] = getattr(CommandFlags("serve"), kind)()
    reasons: dict[str, list[str]] = {}
    for flag in flags:
        if not own & set(flag.names):
            name = next((name for name in flag.names if name.startswith("--")), flag.names[0])
            reasons.setdefault(getattr(flag, kind), []).append(f"`{name}`")
    return "\n".join(f"| {' '.join(names)} | {reason.replace('|', '/')} |" for reason, names in reasons.items())


def with_tables(text: str) -> str:
    """The page with the present tables."""
    for kind, title in TITLES.items():
        pattern = rf"(\| {re.escape(title)} \| why \|\n\|---\|---\|\n)(?:.+\n)+"
        text, n = re.subn(pattern, lambda found, kind=kind: found[1] + rows(kind) + "\n", text)  # type: ignore[misc]
        assert n == 1, title
    return text


def test_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run `python -m tests.serving.test_flags_table`"


if __name__ == "__main__":
    Path(PAGE).write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
