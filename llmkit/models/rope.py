"""The frequencies of rotary position embedding: base, linear scaling, YaRN, factors from the file, sections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.errors import MetadataError, UnsupportedError
from llmkit.models.family import Attention
from llmkit.models.metadata import DAMAGED, Metadata

# Radians a token, either way. Usual are 1 and less; the kernel's angles end at 2^30, which leaves 131072 positions.
MAX_FREQUENCY = 8192.0
KINDS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """base^(-2i/n_rot) * scale radians a position; `table_scale` multiplies sines and cosines.

    corners: YaRN's (arXiv:2309.00071): pairs before the first turn as if never scaled, those after the second are
    scaled, in between there is a mix; None without YaRN.
    """

    base: float
    scale: float = 1.0
    table_scale: float = 1.0
    corners: tuple[float, float] | None = None

    def frequencies(self, n_rot: int, factors: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float64]:
        """Radians a position of each pair, divided by `factors`; float64 [n_rot / 2].

        MetadataError for what no angle can be made of.
        """
        frequencies = np.array([self.base ** (-2.0 * i / n_rot) for i in range(n_rot // 2)], np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if factors is not None:
                frequencies = frequencies / factors.astype(np.float64)
            frequencies = frequencies * self._scales(n_rot // 2)
        if not np.all(np.abs(frequencies) <= MAX_FREQUENCY):  # NaN fails too
            message = (
                f"the file's RoPE turns by up to {np.max(np.abs(frequencies)):g} radians a token, which is no angle"
            )
            raise MetadataError(message, f"rope.freq_base, rope.scaling or the tensor of factors is wrong: {DAMAGED}")
        return frequencies

    def _scales(self, n: int) -> npt.NDArray[np.float64]:
        if self.corners is None:
            return np.full(n, self.scale)
        low, high = self.corners
        scaled = np.clip((np.arange(n) - low) / max(0.001, high - low), 0.0, 1.0)
        return np.asarray(self.scale * scaled + (1.0 - scaled))


def read_ropes(read: Metadata, attention: Attention, n_rot: int, n_ctx_train: int) -> tuple[Rope, Rope]:
    """The RoPE of layers that see everything, and of those with a window."""
    base = read.real("rope.freq_base", 10000.0, 1.0)
    kind = read.text("rope.scaling.type", "linear")
    if kind not in KINDS:
        raise UnsupportedError(
            f"{read.gguf.path}: {read.arch}.rope.scaling.type {kind!r} is not supported",
            f"kinds that run: {', '.join(KINDS)}",
        )
    factor = read.real("rope.scaling.factor", read.real("rope.scale_linear", 0.0))
    scale = 1.0 if kind == "none" or factor == 0.0 else 1.0 / factor
    table_scale = read.positive("rope.scaling.attn_factor", 1.0)
    full = Rope(base, scale, table_scale)
    if kind == "yarn":
        held_back = read.real("rope.scaling.yarn_log_multiplier", 0.0) if attention.yarn_log_mul else 0.0
        full = _yarn(read, full, n_rot, n_ctx_train, held_back)
    own = read.real("rope.freq_base_swa", 10000.0 if attention.window_rope == "own" else base, 1.0)
    if attention.window_rope == "scaled":
        return full, Rope(own, full.scale, full.table_scale, full.corners)
    if attention.window_rope == "own":
        return full, Rope(own, 1.0, table_scale)
    return full, Rope(base)


def original_context(read: Metadata, n_ctx_train: int) -> int:
    """The context that the model was trained for before it was stretched."""
    return read.number("rope.scaling.original_context_length", n_ctx_train) or n_ctx_train


def _yarn(read: Metadata, plain: Rope, n_rot: int, n_ctx_train: int, held_back: float) -> Rope:
    """The corners, and 1 + 0.1 ln(factor) on the tables, over the same with `held_back`, as llama.cpp computes them."""
    n_ctx = original_context(read, n_ctx_train)
    fast = read.positive("rope.scaling.yarn_beta_fast", 32.0)
    slow = read.positive("rope.scaling.yarn_beta_slow", 1.0)
    base = max(plain.base, 1.0 + 1e-6)
    low, high = (n_rot * math.log(n_ctx / (beta * 2 * math.pi)) / (2 * math.log(base)) for beta in (fast, slow))
    corners = max(0.0, float(math.floor(low))), min(n_rot - 1.0, float(math.ceil(high)))
    log = 0.1 * math.log(1.0 / plain.scale) if plain.scale < 1.0 else 0.0
    growth = (1.0 + log) / (1.0 + held_back * log)
    return Rope(plain.base, plain.scale, plain.table_scale * growth, corners)
