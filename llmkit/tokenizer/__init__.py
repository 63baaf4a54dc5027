"""Text to token ids and back, from what a GGUF file says about its tokenizer.

Byte-level BPE (`tokenizer.ggml.model` = gpt2), SPM (llama, gemma) and WordPiece (bert) run, on the `tokenizers`
library; every other kind is refused by name. Knows nothing about models, prompts or terminals. Importing this package
is cheap: the library is imported when one is loaded.
"""

from llmkit.tokenizer.detokenizer import Detokenizer
from llmkit.tokenizer.load import load_tokenizer
from llmkit.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]
