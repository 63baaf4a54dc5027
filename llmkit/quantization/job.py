"""The work: a few rows at a time are read, converted and written at their place, by several threads.

Owns chunks, threads, the output files and what happens when something ends the work: no file is left then, and what was
there before stays. Every chunk's place in the output is known beforehand, so reading, converting and writing need no
order and overlap by themselves; memory is a chunk for each thread. Knows nothing of rules.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO

from ..errors import QuantizeError
from ..files.atomic import finished_file, write_at
from ..files.ggml_types import GGML_TYPES, row_bytes
from ..files.gguf_cursor import shown
from ..files.gguf_reader import GgufFile
from ..files.pages import done_with, will_need
from .convert import Converter, load_kernels
from .importance import Importance
from .options import ggml_name
from .outputs import Output
from .plan import Plan, TensorPlan
from .tensor_names import TOKEN_EMBDS

CHUNK_VALUES = 1 << 17
"""What a thread takes at a time: its float32 values stay in the processor's cache."""

READ_AHEAD = 64 << 20
MAX_BUFFER_MIB = 8192


@dataclass(frozen=True)
class Chunk:
    """Rows [first, first + n) of tensor number `index` of the plan; they belong to one matrix."""

    index: int
    first: int
    n: int


def check_job(plan: Plan, importance: Importance) -> None:
    """QuantizeError or ImatrixError for what would end the work half-way, before anything is written."""
    for tensor in plan.tensors:
        if not tensor.changes:
            continue
        type = ggml_name(tensor.type)
        if tensor.needs_imatrix and importance.of(tensor.info) is None:
            what = "is missing there" if importance else "needs an importance matrix"
            raise QuantizeError(
                f"this quantization requires an importance matrix: tensor {shown(tensor.name)}, of type {type}, {what}",
                "Make one with `llmkit imatrix` or llama-imatrix and give it with --imatrix.",
            )
        importance.of(tensor.info)
        source = GGML_TYPES[tensor.info.type]
        if source.block_size > 1 and not plan.options.allow_requantize:
            raise QuantizeError(
                f"requantizing from type {ggml_name(source.id)} is disabled: tensor {shown(tensor.name)}",
                "Start from an F16, BF16 or F32 file, or accept the loss with --allow-requantize.",
            )


def n_unweighted(plan: Plan, importance: Importance) -> int:
    """How many tensors are quantised without weights though there is an importance matrix; embeddings and output, which
    it seldom holds, are not counted, nor what becomes floats."""
    if not importance:
        return 0
    return sum(
        tensor.changes
        and GGML_TYPES[tensor.type].block_size > 1
        and tensor.info.name not in (*TOKEN_EMBDS, "output.weight")
        and importance.of(tensor.info) is None
        for tensor in plan.tensors
    )


class Job:
    """A plan at work. `run` returns when the files are complete and under their names."""

    def __init__(
        self, gguf: GgufFile, plan: Plan, importance: Importance, files: list[Output], max_buffer: int = 0
    ) -> None:
        self.gguf, self.plan, self.files = gguf, plan, files
        self.importance = importance
        self._max_buffer = max_buffer or MAX_BUFFER_MIB << 20
        self._offsets = _offsets(plan, files)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._events: SimpleQueue[tuple[int, int] | BaseException | None] = SimpleQueue()

    def run(self, n_threads: int, on_tensor: Callable[[int], None], on_bytes: Callable[[int], None]) -> None:
        """Do it all. `on_tensor(i)` is called in order, once tensor i is written, `on_bytes` with bytes of the source
        that are done; both in this thread.

        Raises QuantizeError for a weight that is no number, OutputError where a file cannot be written.
        """
        for tensor in self.plan.tensors:
            load_kernels(tensor.name, tensor.info.type, tensor.type)
        with ExitStack() as stack:
            handles = [stack.enter_context(finished_file(file.path)) for file in self.files]
            for handle, file in zip(handles, self.files, strict=True):
                os.ftruncate(handle.fileno(), file.layout.n_bytes)
                write_at(handle, file.layout.header, 0)
            chunks = self._chunks(n_threads)
            threads = [threading.Thread(target=self._work, args=(chunks, handles)) for _ in range(n_threads)]
            try:
                for thread in threads:
                    thread.start()
                self._follow(n_threads, on_tensor, on_bytes)
            finally:
                self._stop.set()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()

    def _follow(self, n_threads: int, on_tensor: Callable[[int], None], on_bytes: Callable[[int], None]) -> None:
        """Report what the threads do until all have ended; raises what one of them met."""
        left = [tensor.info.n_rows for tensor in self.plan.tensors]
        n_running, shown_until = n_threads, 0
        while n_running:
            event = self._events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                n_running -= 1
                continue
            index, n_rows = event
            info = self.plan.tensors[index].info
            left[index] -= n_rows
            on_bytes(n_rows * info.row_bytes)
            if not left[index]:
                done_with(self.gguf.tensor_bytes(info.name))
            while shown_until < len(left) and not left[shown_until]:
                on_tensor(shown_until)
                shown_until += 1

    def _chunks(self, n_threads: int) -> Iterator[Chunk]:
        """All rows of all tensors; a chunk of each thread together stays below the largest buffer allowed."""
        for index, tensor in enumerate(self.plan.tensors):
            info = tensor.info
            will_need(self.gguf.tensor_bytes(info.name)[:READ_AHEAD])
            n_columns = info.shape[0]
            n_matrix = info.shape[1] if len(info.shape) > 1 else 1
            row = info.row_bytes + 4 * n_columns + row_bytes(tensor.type, n_columns)
            at_once = max(1, min(CHUNK_VALUES // n_columns, self._max_buffer // n_threads // row))
            for start in range(0, info.n_rows, n_matrix):
                for first in range(start, start + n_matrix, at_once):
                    yield Chunk(index, first, min(at_once, start + n_matrix - first))

    def _work(self, chunks: Iterator[Chunk], handles: list[BinaryIO]) -> None:
        """One thread: chunks until there are no more, or somebody has stopped."""
        converter = Converter()
        try:
            while not self._stop.is_set():
                with self._lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                self._do(chunk, converter, handles)
                self._events.put((chunk.index, chunk.n))
            self._events.put(None)
        except BaseException as error:  # whatever it is, the main thread must hear of it
            self._events.put(error)

    def _do(self, chunk: Chunk, converter: Converter, handles: list[BinaryIO]) -> None:
        tensor = self.plan.tensors[chunk.index]
        info, rows = tensor.info, slice(chunk.first, chunk.first + chunk.n)
        source = self.gguf.tensor_bytes(info.name).reshape(info.n_rows, -1)[rows]
        weights = self._weights(tensor, chunk) if tensor.changes else None
        made = converter.convert(tensor.name, source, info.type, tensor.type, info.shape[0], weights)
        offset = self._offsets[chunk.index] + chunk.first * row_bytes(tensor.type, info.shape[0])
        write_at(handles[tensor.part], made.data, offset)

    def _weights(self, tensor: TensorPlan, chunk: Chunk) -> Any:
        found = self.importance.of(tensor.info)
        if found is None:
            return None
        return found[chunk.first // tensor.info.shape[1] % len(found)]


def _offsets(plan: Plan, files: list[Output]) -> list[int]:
    """Where each tensor of the plan goes in its file."""
    left = [iter(file.layout.offsets) for file in files]
    return [next(left[tensor.part]) for tensor in plan.tensors]
