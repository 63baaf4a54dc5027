"""The slow, obvious NumPy twin of everything fast.

Owns one plain definition of every operation, of the architectures, of the 8-bit activations and of the
sampler, for the tests to compare with. It refuses to be fast, to keep a cache, and to import anything of `llmkit` but
the file reader.
"""

from tests.reference.archs import ARCHS
from tests.reference.model import Twin, forward
from tests.reference.ops import (
    alibi_slopes,
    attention,
    attention_tiled,
    geglu,
    gelu,
    layer_norm,
    nmse,
    relu2,
    rms_norm,
    rope,
    rope_tables,
    silu,
    soft_cap,
    softmax,
    swiglu,
    swiglu_oai,
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
    "ARCHS",
    "Twin",
    "act_block_size",
    "alibi_slopes",
    "attention",
    "attention_tiled",
    "candidates",
    "dequantize_rows",
    "forward",
    "geglu",
    "gelu",
    "greedy",
    "layer_norm",
    "log_softmax",
    "matmul",
    "min_p",
    "nmse",
    "pick",
    "quantize_activations",
    "quantize_dequantize",
    "relu2",
    "rms_norm",
    "rope",
    "rope_tables",
    "silu",
    "soft_cap",
    "softmax",
    "swiglu",
    "swiglu_oai",
    "temperature",
    "top_k",
    "top_p",
]
