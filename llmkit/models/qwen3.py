"""qwen3: llama with split-half RoPE and normalised heads of q and k."""

from llmkit.models.llama import Llama

QWEN3 = Llama(interleaved=False, head_norms=True, rope_factors=False, ffn_bias=False, ffn_scale_first=True)
