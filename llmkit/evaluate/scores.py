"""What rows of logits say about tokens: the kernels of log-softmax and KL divergence, run on a context's threads.

Owns the buffers. Arrays that are returned are valid until the next call of the same method.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.row_kernel import RowKernel
from llmkit.errors import NumericsError
from llmkit.evaluate.logits_file import packed_columns
from llmkit.kernels import kl_divergence as kl
from llmkit.kernels import log_softmax as ls

if TYPE_CHECKING:
    from llmkit.engine.context import Context

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class RowScores:
    """Scores of up to any number of rows of one context's logits."""

    def __init__(self, ctx: "Context") -> None:
        self._n_vocab = ctx.model.config.n_vocab
        self._log_softmax = RowKernel(ctx.team, ls.log_softmax, ls.FIELDS)
        self._kl = RowKernel(ctx.team, kl.kl_divergence, kl.KL_FIELDS)
        self._pack = RowKernel(ctx.team, kl.pack_log_probs, kl.PACK_FIELDS)
        self._packed_kl = RowKernel(ctx.team, kl.packed_kl_divergence, kl.PACKED_KL_FIELDS)
        self._packed = np.zeros((0, 0), np.uint16)

    def statistics(self, logits: Floats) -> Doubles:
        """float64 [n, 3]: largest logit, its token, log of the sum of exp(logit - largest). NumericsError on NaN."""
        out = np.empty((len(logits), ls.STATS))
        x_stride = logits.strides[0]
        self._log_softmax.run(len(logits), x=logits, x_stride=x_stride, n_cols=self._n_vocab, y=out)
        if not np.isfinite(out).all():
            raise NumericsError("the model computed logits that are not finite numbers")
        return out

    def nll(self, logits: Floats, statistics: Doubles, targets: NDArray[np.int64]) -> Doubles:
        """-log p of each row's target, float64 [n]."""
        chosen = logits[np.arange(len(targets)), targets].astype(np.float64)
        return statistics[:, ls.LOG_SUM] - (chosen - statistics[:, ls.LARGEST])

    def divergence(self, logits: Floats, statistics: Doubles, base: Floats, base_statistics: Doubles) -> Doubles:
        """KL(base || this model) of each row, float64 [n]: exactly 0 for equal logits."""
        out = np.empty(len(logits))
        self._kl.run(
            len(logits), x=logits, x_stride=logits.strides[0], x_stats=statistics, base=base,
            base_stride=base.strides[0], base_stats=base_statistics, n_cols=self._n_vocab, y=out,
        )  # fmt: skip
        return out

    def packed_rows(self, n_rows: int) -> NDArray[np.uint16]:
        """Room for rows in the 16-bit form, uint16 [n_rows, packed_columns + 16]: a kernel may touch the last 16."""
        if len(self._packed) < n_rows:
            self._packed = np.zeros((n_rows, packed_columns(self._n_vocab) + 16), np.uint16)
        return self._packed[:n_rows]

    def pack(self, logits: Floats, statistics: Doubles) -> NDArray[np.uint16]:
        """The rows' log-probabilities in the 16-bit form, uint16 [n, packed_columns]."""
        packed = self.packed_rows(len(logits))
        self._pack.run(len(logits), **self._packed_arguments(logits, statistics, packed))
        columns = packed_columns(self._n_vocab)
        if self._n_vocab % 2:
            packed[:, columns - 1] = 0
        return packed[:, :columns]

    def packed_divergence(
        self, logits: Floats, statistics: Doubles, packed: NDArray[np.uint16], targets: NDArray[np.int64]
    ) -> Doubles:
        """float64 [n, 3]: KL(packed || this model), the packed row's likeliest token, its log p of the target.

        packed: what `packed_rows` gave, filled.
        """
        out = np.empty((len(logits), kl.PACKED_STATS))
        arguments = self._packed_arguments(logits, statistics, packed)
        self._packed_kl.run(len(logits), **arguments, targets=targets, y=out)
        return out

    def _packed_arguments(self, logits: Floats, statistics: Doubles, packed: NDArray[np.uint16]) -> dict[str, Any]:
        return dict(
            x=logits, x_stride=logits.strides[0], x_stats=statistics, n_cols=self._n_vocab, packed=packed,
            packed_stride=packed.strides[0],
        )  # fmt: skip
