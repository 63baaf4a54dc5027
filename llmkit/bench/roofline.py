"""What a case needs at least: bytes from memory and operations, and the share of the ceilings that a time means.

Counts what the mathematics demands, from the file's own sizes: weights once for each pass, K and V once for each token
that sees them in a generation. A kernel that reads or computes more than that gets a smaller share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit.kernels.activation_tile import F32
from llmkit.kernels.kv_types.registry import BLOCK_CELLS, head_bytes

if TYPE_CHECKING:
    from llmkit.bench.cases import Case
    from llmkit.bench.machine import Ceilings
    from llmkit.models.config import Config
    from llmkit.models.model import Model


@dataclass(frozen=True)
class Work:
    """Of one repetition: bytes that memory delivers, operations on bytes and on float32 (a multiply-add is two)."""

    memory_bytes: int
    int8_ops: int
    f32_ops: int

    def seconds_of_memory(self, ceilings: Ceilings) -> float:
        """At the measured bandwidth."""
        return self.memory_bytes / ceilings.bandwidth_gb_s / 1e9

    def seconds_of_compute(self, ceilings: Ceilings) -> float:
        """At the measured peaks, one kind of operation after the other."""
        return self.int8_ops / ceilings.int8_gop_s / 1e9 + self.f32_ops / ceilings.f32_gflop_s / 1e9


def work_of(model: Model, case: Case) -> Work:
    """What one repetition of the case needs."""
    passes = _passes(case)
    n_out = sum(1 for n, last in passes if last)
    weight_bytes, int8_ops, f32_ops = 0, 0, 0
    for matrix in model.weights.matrices.values():
        is_output = matrix.name in ("output.weight", "token_embd.weight")
        n_rows = n_out if is_output else case.n_tokens
        ops = 2 * matrix.n_rows * matrix.n_cols * n_rows
        weight_bytes += matrix.n_rows * matrix.type.row_bytes(matrix.n_cols) * (n_out if is_output else len(passes))
        if matrix.type.activation == F32:
            f32_ops += ops
        else:
            int8_ops += ops
    n_seen = _tokens_seen(model.config, case.n_depth, case.n_tokens)
    f32_ops += 4 * model.config.n_head * model.config.head_dim * n_seen
    return Work(weight_bytes + _kv_bytes(model, case), int8_ops, f32_ops)


def _passes(case: Case) -> list[tuple[int, bool]]:
    """The rows of each pass through the model, and whether it ends with a row of logits."""
    passes = []
    for first in range(0, case.n_prompt, case.n_batch):
        n = min(case.n_batch, case.n_prompt - first)
        passes += [(min(case.n_ubatch, n - i), i + case.n_ubatch >= n) for i in range(0, n, case.n_ubatch)]
    return passes + [(1, True)] * case.n_gen


def _tokens_seen(config: Config, n_before: int, n: int) -> int:
    """Pairs of a token and one it attends to, over all layers, for `n` tokens after `n_before`."""
    total = 0
    for layer in range(config.n_layer):
        window = config.windows[layer] or n_before + n
        total += sum(min(pos + 1, window) for pos in range(n_before, n_before + n))
    return total


def _kv_bytes(model: Model, case: Case) -> int:
    """K and V that the generated tokens read; a prompt's tokens share what they read, which is little."""
    n_before = case.n_depth + case.n_prompt
    config = model.config
    of_head = sum(head_bytes(name, config.head_dim) // BLOCK_CELLS for name in (case.type_k, case.type_v))
    return config.n_head_kv * of_head * _tokens_seen(config, n_before, case.n_gen)
