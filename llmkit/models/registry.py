"""Which architectures run, and the refusal of all others."""

from __future__ import annotations

from llmkit.errors import UnsupportedError
from llmkit.models.architectures import FAMILIES
from llmkit.models.family import Family


def family(arch: str) -> Family:
    """The family of an architecture; UnsupportedError names those that run."""
    if arch not in FAMILIES:
        raise UnsupportedError(
            f"the architecture {arch!r} is not supported", f"architectures that run: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[arch]
