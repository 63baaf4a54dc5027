"""Architectures that run, by the name in `general.architecture`; a family's file is imported when it is met."""

from __future__ import annotations

from importlib import import_module

from llmkit.errors import UnsupportedError
from llmkit.models.family import Family

# name -> (module, family in it)
FAMILIES = {
    "llama": ("llama", "LLAMA"),
    "qwen2": ("qwen2", "QWEN2"),
    "qwen3": ("qwen3", "QWEN3"),
    "gemma3": ("gemma3", "GEMMA3"),
}


def family(arch: str) -> Family:
    """The family of an architecture; UnsupportedError names those that run."""
    if arch not in FAMILIES:
        raise UnsupportedError(
            f"the architecture {arch!r} is not supported", f"architectures that run: {', '.join(FAMILIES)}"
        )
    module, name = FAMILIES[arch]
    result: Family = getattr(import_module(f"llmkit.models.{module}"), name)
    return result
