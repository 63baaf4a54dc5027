"""llmkit: a command-line toolkit for GGUF language models, in Python, NumPy and Numba.

Importing this package imports nothing heavy: every command loads what it needs when it runs.
"""

__version__ = "0.1.0"
