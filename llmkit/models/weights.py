"""A model's tensors: found by name, checked by shape and type, addressed for kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.errors import TensorError, UnsupportedError
from llmkit.files.gguf_reader import GgufFile
from llmkit.files.gguf_tensors import TensorInfo
from llmkit.quants.registry import QuantType, quant_type

F32 = 0
DAMAGED = "the file is damaged or was not written for this architecture"


@dataclass
class Matrix:
    """A weight of n_rows x n_cols. `raw`: its address in the file; `packed`: that of its tiles, once they are there."""

    name: str
    n_rows: int
    n_cols: int
    type: QuantType
    raw: int
    packed: int = 0

    @property
    def packed_bytes(self) -> int:
        return self.type.packed_bytes(self.n_rows, self.n_cols)

    @property
    def n_tiles(self) -> int:
        return -(-self.n_rows // 16)


@dataclass
class Weights:
    """Hands out checked tensors and remembers them. `matrices` are those that need tiles, by name."""

    gguf: GgufFile
    matrices: dict[str, Matrix] = field(default_factory=dict)
    _kept: dict[bytes, npt.NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._mapped = self.gguf.data  # a file that somebody closes must not take away what kernels read

    def info(self, name: str) -> TensorInfo:
        """The tensor's place; TensorError when it is missing."""
        if name not in self.gguf.tensors:
            raise TensorError(f"{self.gguf.path}: the tensor {name} is missing", DAMAGED)
        return self.gguf.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.gguf.tensors

    def table(self, name: str, n_cols: int, n_rows: int) -> Matrix:
        """A matrix whose rows are read where they lie in the file."""
        info = self.info(name)
        self._check_shape(info, (n_cols, n_rows))
        kind = self._type(info)
        return Matrix(name, n_rows, n_cols, kind, self.gguf.address + info.offset)

    def matrix(self, name: str, n_cols: int, n_rows: int) -> Matrix:
        """A matrix to multiply with: n_cols inputs, n_rows outputs."""
        if name not in self.matrices:
            self.matrices[name] = self.table(name, n_cols, n_rows)
        return self.matrices[name]

    def vector(self, name: str, n: int) -> int:
        """Address of float32 [n], filled up with zeros to a multiple of 16 values."""
        info = self.info(name)
        self._check_shape(info, (n,))
        values = self._floats(info)
        padded = np.zeros(-(-n // 16) * 16, np.float32)
        padded[:n] = values
        return self.keep(padded)

    def keep(self, values: npt.NDArray[Any]) -> int:
        """Address of an array, which lives as long as the weights; of equal arrays one is kept, for all contexts."""
        key = values.dtype.str.encode() + values.tobytes()
        return self._kept.setdefault(key, values).ctypes.data

    def optional_vector(self, name: str, n: int) -> int:
        """Address as `vector` gives it, 0 when the tensor is absent."""
        return self.vector(name, n) if self.has(name) else 0

    def values(self, name: str, n: int) -> npt.NDArray[np.float32]:
        """float32 [n] for Python."""
        info = self.info(name)
        self._check_shape(info, (n,))
        return self._floats(info)

    def _check_shape(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        found = tuple(info.shape)
        while len(found) > len(shape) and found[-1] == 1:
            found = found[:-1]
        if found != shape:
            message = (
                f"{self.gguf.path}: the tensor {info.name} has the shape {list(info.shape)}; {list(shape)} is expected"
            )
            raise TensorError(message, DAMAGED)

    def _type(self, info: TensorInfo) -> QuantType:
        try:
            return quant_type(info.type)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.gguf.path}: {info.name}: {error.message}", error.hint) from None

    def _floats(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        data = self.gguf.tensor_bytes(info.name)
        if info.type == F32:
            return np.frombuffer(data.tobytes(), np.float32)
        if info.type == 1:
            return np.frombuffer(data.tobytes(), np.float16).astype(np.float32)
        if info.type == 30:
            return (np.frombuffer(data.tobytes(), np.uint16).astype(np.uint32) << 16).view(np.float32)
        message = f"{self.gguf.path}: the tensor {info.name} has a block type, where F32, F16 or BF16 is expected"
        raise TensorError(message, DAMAGED)
