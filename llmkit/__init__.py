"""llmkit: a command-line toolkit for GGUF language models, in Python, NumPy and Numba.

What a program may use is listed here and described in docs/api.md. Importing this package imports nothing heavy: every
name is loaded when it is first asked for, and every command loads what it needs when it runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmkit.engine.batch import Segment
    from llmkit.engine.context import Context
    from llmkit.engine.generation.completion import generate
    from llmkit.engine.generation.generate import GeneratedToken, Generation, StopReason
    from llmkit.engine.state.save_load import load_state, save_state
    from llmkit.errors import LlmkitError
    from llmkit.models.model import Model
    from llmkit.params import ContextParams, SamplingParams
    from llmkit.sampling.grammar import GrammarCompiler
    from llmkit.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "Context",
    "ContextParams",
    "GeneratedToken",
    "Generation",
    "GrammarCompiler",
    "LlmkitError",
    "Model",
    "SamplingParams",
    "Segment",
    "StopReason",
    "Tokenizer",
    "__version__",
    "generate",
    "load_state",
    "save_state",
]

_MODULES = {
    "Context": "engine.context",
    "ContextParams": "params",
    "GeneratedToken": "engine.generation.generate",
    "Generation": "engine.generation.generate",
    "GrammarCompiler": "sampling.grammar",
    "LlmkitError": "errors",
    "Model": "models.model",
    "SamplingParams": "params",
    "Segment": "engine.batch",
    "StopReason": "engine.generation.generate",
    "Tokenizer": "tokenizer",
    "generate": "engine.generation.completion",
    "load_state": "engine.state.save_load",
    "save_state": "engine.state.save_load",
}


def __getattr__(name: str) -> Any:
    """Loads the module that a public name is from, once."""
    if name not in _MODULES:
        raise AttributeError(f"module 'llmkit' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"llmkit.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
