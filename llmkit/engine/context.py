"""A context: a model with KV memory and threads, ready to decode batches. Knows nothing of sampling or text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from llmkit.engine.attention_units import AttentionUnits, UnitSizes
from llmkit.engine.batch import Segment
from llmkit.engine.key_shift import KeyShift
from llmkit.engine.memory_limit import check_room, choose_n_ctx
from llmkit.engine.thread_team import ThreadTeam, default_threads
from llmkit.engine.ubatch import Piece, fill_inputs, split
from llmkit.errors import ContextFullError, LlmkitError, NumericsError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import Chain
from llmkit.memory.kinds import MemoryLayout
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.memory import Memory
from llmkit.memory.sequence import Sequence
from llmkit.memory.sliding_window import drop_kept, slide
from llmkit.models.graph import max_queries
from llmkit.models.input_squares import InputSquares
from llmkit.models.inputs import PlanInputs
from llmkit.models.model import Model
from llmkit.models.plan import Plan
from llmkit.params import ContextParams


class Context:
    """Decodes batches of token runs for any number of sequences over `n_ctx` cells.

    `kv` is the memory, `memory` the operations on its sequences by id; `n_ctx` and `n_threads` are what was resolved,
    `n_ctx_reason` says in words where n_ctx comes from. A collector sums up what each matrix is multiplied with.
    """

    def __init__(
        self, model: Model, params: ContextParams | None = None, collector: InputSquares | None = None
    ) -> None:
        self.model, self.params = model, params or ContextParams()
        params = self.params
        layout = model.layout(params.type_k, params.type_v)
        n_full = 1 if params.kv_unified else params.n_seq_max
        self.n_ctx, self.n_ctx_reason = choose_n_ctx(
            params.n_ctx, model.config.n_ctx_train, layout, n_full,
            lambda n: self._kinds(n).bytes_of(n, min(params.n_ubatch, params.n_batch)),
        )  # fmt: skip
        if 0 < model.n_positions < self.n_ctx:
            message = f"a context of {self.n_ctx} tokens, but {model.name} knows {model.n_positions} positions"
            raise UsageError(message, f"give -c {model.n_positions} or less")
        self.n_ubatch = min(params.n_ubatch, params.n_batch, n_full * self.n_ctx)
        self.n_threads = params.n_threads if params.n_threads > 0 else default_threads()
        kinds = self._kinds(self.n_ctx)
        # Each further sequence may leave a block half empty, and begin with a copy of another's half-full one.
        n_cells = n_full * self.n_ctx + 2 * BLOCK_CELLS * (params.n_seq_max - 1)
        self.kv = KvCache(kinds, self.n_ctx, model.n_positions, n_cells)
        self._inputs = PlanInputs(-(-self.n_ubatch // 8) * 8)
        addresses = [pool.addresses.ctypes.data for pool in self.kv.pools]
        graph, logits = model.build(self._inputs, kinds, addresses, self.n_ctx, collector)
        self._plan = Plan(graph, logits, self._inputs.n_rows_max, self.n_threads)
        self._out = np.empty((0, model.config.n_vocab), np.float32)
        self._team = ThreadTeam(self.n_threads)
        turn = KeyShift(model, kinds, self.kv, self._team, self.n_ctx).turn if model.has_rope else None
        self.memory = Memory(self.kv, turn, can_shift=model.can_shift)
        self._attention = AttentionUnits(_unit_sizes(model, self.n_threads))
        self._decoding = threading.RLock()

    def _kinds(self, n_ctx: int) -> MemoryLayout:
        return self.model.memory_layout(self.params.type_k, self.params.type_v, n_ctx, swa_full=self.params.swa_full)

    @property
    def team(self) -> ThreadTeam:
        """The context's threads, for kernels that work on its logits."""
        return self._team

    # -- sequences ------------------------------------------------------------------------------------------------

    def new_sequence(self) -> Sequence:
        """An empty sequence."""
        return self.kv.new_sequence()

    def free_sequence(self, seq: Sequence) -> None:
        """Ends a sequence and frees its cells; a second time does nothing."""
        self.kv.free(seq)

    # -- decoding -------------------------------------------------------------------------------------------------

    def decode(self, segments: list[Segment]) -> npt.NDArray[np.float32]:
        """Computes new tokens; the logits that were wanted, float32 [n_out, n_vocab] in the segments' order.

        The result is valid until the next call. Whatever is raised, all sequences are what they were before:
        ContextFullError when the tokens do not fit, NumericsError when logits are no finite numbers, UsageError for
        what is no token id of the model, no sequence of this context, or when another thread is decoding.
        """
        if not self._decoding.acquire(blocking=False):
            raise UsageError("the context is decoding in another thread", "give each thread a context of its own")
        chains: dict[Sequence, Chain] = {}
        try:
            try:
                self._check_sequences(segments)
                tokens = [self._checked(segment.tokens) for segment in segments]
                for segment in segments:
                    self.memory.settle(segment.seq)
                self.kv.check_room(_n_new(segments))
                chains = {segment.seq: segment.seq.chain for segment in segments}
                logits = self._run(split(segments, tokens, self.n_ubatch), chains)
                drop_kept(self.kv)
                return logits
            finally:
                self._decoding.release()
        except BaseException as error:
            self._restore(chains, exactly=isinstance(error, LlmkitError))
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Around what no decode may run beside; UsageError when another thread is at it."""
        if not self._decoding.acquire(blocking=False):
            raise UsageError("the context is decoding in another thread", "give each thread a context of its own")
        try:
            yield
        finally:
            self._decoding.release()

    def _check_sequences(self, segments: list[Segment]) -> None:
        """UsageError for a sequence that this context does not have."""
        for segment in segments:
            if segment.seq not in self.kv.sequences:
                raise UsageError("the sequence was freed, or belongs to another context", "take one of new_sequence()")

    def _restore(self, chains: dict[Sequence, Chain], *, exactly: bool) -> None:
        """Puts chains back. Unless `exactly`, an interruption may have fallen between two steps of a change."""
        changed = False
        for seq, chain in chains.items():
            changed |= seq.chain is not chain
            seq.chain = chain
        if changed or not exactly:
            self.kv.recount()

    def _checked(self, tokens: list[int]) -> npt.NDArray[np.int32]:
        """Token ids as int32; UsageError names the first that the vocabulary does not have."""
        try:
            ids = np.asarray(tokens) if len(tokens) else np.empty(0, np.int64)
        except ValueError:
            ids = np.empty((1, 0))
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise UsageError("a segment's tokens are no list of whole numbers", "give ids of this model's tokenizer")
        bad = ids[(ids < 0) | (ids >= self.model.config.n_vocab)]
        if bad.size:
            message = f"token id {bad[0]} is not in the vocabulary of {self.model.config.n_vocab}"
            raise UsageError(message, "give ids of this model's tokenizer")
        return ids.astype(np.int32)

    def _run(self, ubatches: list[list[Piece]], chains: dict[Sequence, Chain]) -> npt.NDArray[np.float32]:
        """Runs the plan for each ubatch and collects the logits. chains: what sequences held before."""
        n_out = sum(piece.n_out for pieces in ubatches for piece in pieces)
        if len(ubatches) == 1:
            return self._run_one(ubatches[0], chains)
        if len(self._out) < n_out:
            check_room(4 * n_out * self.model.config.n_vocab, f"the logits of {n_out} tokens")
            self._out = np.empty((n_out, self.model.config.n_vocab), np.float32)
        done = 0
        for pieces in ubatches:
            logits = self._run_one(pieces, chains)
            self._out[done : done + len(logits)] = logits
            done += len(logits)
        return self._out[:n_out]

    def _run_one(self, pieces: list[Piece], chains: dict[Sequence, Chain]) -> npt.NDArray[np.float32]:
        for piece in pieces:
            self.kv.append(piece.seq, piece.tokens)
        n_out = fill_inputs(self._inputs, pieces, self.kv, self._attention)
        self._team.run(self._plan.address)
        logits: npt.NDArray[np.float32] = self._plan.logits[:n_out]
        if n_out and not _all_finite(logits):
            hint = "the model's values overflow; try f32 for -ctk and -ctv"
            message = "the model computed logits that are not finite numbers"
            raise NumericsError(message, hint, _not_finite(logits, pieces))
        for piece in pieces:
            slide(self.kv, piece.seq, chains[piece.seq])
        return logits

    # -- life -----------------------------------------------------------------------------------------------------

    def warm_up(self) -> float:
        """Runs one token through the plan, so that all pages and kernels are there; seconds.

        Where sequences leave no block for it, the first decode is the one that takes longer.
        """
        start = time.perf_counter()
        seq = self.new_sequence()
        try:
            with suppress(ContextFullError):
                self.decode([Segment(seq, [0], "last")])
        finally:
            self.free_sequence(seq)
        return time.perf_counter() - start

    def close(self) -> None:
        """Ends the threads. The context cannot decode any more; closing it again does nothing."""
        self._team.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _n_new(segments: list[Segment]) -> dict[Sequence, int]:
    """How many tokens each sequence gets."""
    counts: dict[Sequence, int] = {}
    for segment in segments:
        counts[segment.seq] = counts.get(segment.seq, 0) + len(segment.tokens)
    return counts


def _all_finite(logits: npt.NDArray[np.float32]) -> bool:
    """Whether no logit is NaN or infinite: that would make its row's sum so. A sum of large ones may overflow, too."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = logits.sum(axis=1)
    return bool(np.isfinite(sums).all()) or bool(np.isfinite(logits).all())


def _not_finite(logits: npt.NDArray[np.float32], pieces: list[Piece]) -> tuple[Sequence, ...]:
    """The sequences that have a row with NaN or infinity."""
    owners = [piece.seq for piece in pieces for _ in range(piece.n_out)]
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    return tuple(dict.fromkeys(owners[row] for row in bad))


def _unit_sizes(model: Model, n_threads: int) -> UnitSizes:
    config = model.config
    queries = max_queries(config.n_head, config.n_head_kv, config.head_dim)
    n_rows = max(1, queries * config.n_head_kv // config.n_head)
    return UnitSizes(n_rows, config.n_head, n_threads)
