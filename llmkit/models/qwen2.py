"""qwen2: llama with split-half RoPE; its q, k and v have biases."""

from llmkit.models.llama import Llama

QWEN2 = Llama(interleaved=False, rope_factors=False, ffn_bias=False, ffn_scale=False)
