"""The slow, obvious NumPy twin of everything fast.

Owns one plain definition of every operation, of the four architectures, of the 8-bit activations and of the
sampler, for the tests to compare with. It refuses to be fast, to keep a cache, and to import anything of `llmkit` but
the file reader.
"""

from tests.reference.model import Twin, embed_scale, forward
from tests.reference.ops import (
    attention,
    attention_tiled,
    geglu,
    gelu,
    nmse,
    rms_norm,
    rope,
    rope_tables,
    silu,
    soft_cap,
    softmax,
    swiglu,
)
from tests.reference.quant import (
    act_block_size,
    dequantize_rows,
    matmul,
    quantize_activations,
    quantize_dequantize,
)
from tests.reference.sampling import candidates, greedy, log_softmax, min_p, pick, temperature, top_k, top_p

__all__ = [
    "Twin",
    "act_block_size",
    "attention",
    "attention_tiled",
    "candidates",
    "dequantize_rows",
    "embed_scale",
    "forward",
    "geglu",
    "gelu",
    "greedy",
    "log_softmax",
    "matmul",
    "min_p",
    "nmse",
    "pick",
    "quantize_activations",
    "quantize_dequantize",
    "rms_norm",
    "rope",
    "rope_tables",
    "silu",
    "soft_cap",
    "softmax",
    "swiglu",
    "temperature",
    "top_k",
    "top_p",
]
