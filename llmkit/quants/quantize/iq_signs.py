"""The signs of a part (iq_part): kept apart from magnitudes, a bit each, or 7 bits for 8 of an even number.

Source: llama.cpp, ggml-quants (quantize_row_iq2_xs_impl and its like).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.quantize.iq_part import SCALE, SIGNS, VALUES, WEIGHTS
from llmkit.simd.lanes import where
from llmkit.simd.lookup import mask_bits
from llmkit.simd.ops import load_f32, load_i32, splat, store_f32, store_i32, vload, vstore


@helper
def split_signs(part, x, n_values):
    """VALUES and SIGNS of x."""
    for i in range(0, n_values, 16):
        v = vload(x + 4 * i)
        positive = v >= splat(0.0)
        vstore(part + VALUES + 4 * i, where(positive, v, -v))
        bits = mask_bits(~positive)
        store_i32(part + SIGNS + i // 2, bits & 255)
        store_i32(part + SIGNS + i // 2 + 4, bits >> 8)


@helper
def make_signs_even(part, x, n_values):
    """Flips the sign that weighs least where 8 values have an odd number of negative ones: the file holds 7 signs."""
    for k in range(n_values // 8):
        signs = load_i32(part + SIGNS + 4 * k)
        odd = signs ^ signs >> 4
        odd ^= odd >> 2
        if (odd ^ odd >> 1) & 1:
            least, least_at = np.float32(0.0), 0
            for i in range(8 * k, 8 * k + 8):
                cost = load_f32(part + WEIGHTS + 4 * i) * load_f32(x + 4 * i) * load_f32(x + 4 * i)
                if i == 8 * k or cost < least:
                    least, least_at = cost, i
            value = part + VALUES + 4 * least_at
            store_f32(value, -load_f32(value))
            signs ^= 1 << (least_at - 8 * k)
        store_i32(part + SIGNS + 4 * k, signs & 127)


@helper
def positive_scale(part, n_values, all_signs):
    """SCALE without its sign, which goes to SIGNS (`all_signs`: those of 8 values)."""
    scale = load_f32(part + SCALE)
    if scale < 0:
        scale = -scale
        for k in range(n_values // 8):
            store_i32(part + SIGNS + 4 * k, ~load_i32(part + SIGNS + 4 * k) & all_signs)
    return scale


@helper
def signs_of_32(part):
    """SIGNS of 32 values in one number, 7 bits of each 8."""
    signs = 0
    for k in range(4):
        signs |= load_i32(part + SIGNS + 4 * k) << 7 * k
    return signs
