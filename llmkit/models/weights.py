"""A model's tensors: found by name, checked by shape and type, addressed for kernels."""

from __future__ import annotations

from collections.abc import Callable
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

Part = tuple[int, int]  # rows first .. last - 1 of a matrix, or values of a vector


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
    """Hands out checked tensors and remembers them. `matrices` are those that need tiles, by name.

    find_type: quant_type, or type_sizes where nothing will be computed.
    """

    gguf: GgufFile
    find_type: Callable[[int], QuantType] = quant_type
    matrices: dict[str, Matrix] = field(default_factory=dict)
    _kept: dict[bytes, npt.NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._mapped = list(self.gguf.maps)  # a file that somebody closes must not take away what kernels read

    def info(self, name: str) -> TensorInfo:
        """The tensor's place; TensorError when it is missing."""
        if name not in self.gguf.tensors:
            raise TensorError(f"{self.gguf.path}: the tensor {name} is missing", DAMAGED)
        return self.gguf.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.gguf.tensors

    def refuse(self, name: str) -> None:
        """UnsupportedError when the file has this tensor, which the family's code would leave out."""
        if self.has(name):
            raise UnsupportedError(f"{self.gguf.path}: the tensor {name} is not supported in this architecture")

    def n_vocab(self) -> int:
        """The rows of the embedding."""
        shape = self.info("token_embd.weight").shape
        if len(shape) < 2:
            message = f"{self.gguf.path}: token_embd.weight has the shape {list(shape)}, not two dimensions"
            raise TensorError(message, DAMAGED)
        return int(shape[1])

    def table(self, name: str, n_cols: int, n_rows: int) -> Matrix:
        """A matrix whose rows are read where they lie in the file."""
        info = self.info(name)
        self._check_shape(info, (n_cols, n_rows))
        return Matrix(name, n_rows, n_cols, self._type(info), self.gguf.tensor_address(name))

    def matrix(self, name: str, n_cols: int, n_rows: int, part: Part | None = None) -> Matrix:
        """A matrix to multiply with: n_cols inputs, n_rows outputs; or a part of its rows."""
        key = name if part is None else f"{name}[{part[0]}:{part[1]}]"
        if key not in self.matrices:
            whole = self.table(name, n_cols, n_rows)
            first, last = part or (0, n_rows)
            raw = whole.raw + first * whole.type.row_bytes(n_cols)
            self.matrices[key] = Matrix(key, last - first, n_cols, whole.type, raw)
        return self.matrices[key]

    def experts(self, name: str, n_cols: int, n_rows: int, n_expert: int) -> Matrix:
        """The matrices of all experts, one below the other."""
        if name not in self.matrices:
            info = self.info(name)
            self._check_shape(info, (n_cols, n_rows, n_expert))
            if n_rows % 16:
                raise UnsupportedError(f"{self.gguf.path}: {name}: experts of {n_rows} rows, no multiple of 16")
            raw = self.gguf.tensor_address(name)
            self.matrices[name] = Matrix(name, n_rows * n_expert, n_cols, self._type(info), raw)
        return self.matrices[name]

    def vector(self, name: str, *shape: int, part: Part | None = None) -> int:
        """Address of the float32 of a tensor of this shape (or of a part), filled up with zeros to a multiple of 16."""
        values = self.values(name, *shape)
        if part is not None:
            values = values[part[0] : part[1]]
        padded = np.zeros(-(-values.size // 16) * 16, np.float32)
        padded[: values.size] = values
        return self.keep(padded)

    @property
    def kept_bytes(self) -> int:
        """Memory of the vectors that were copied."""
        return sum(values.nbytes for values in self._kept.values())

    def keep(self, values: npt.NDArray[Any]) -> int:
        """Address of an array, which lives as long as the weights; of equal arrays one is kept, for all contexts."""
        key = values.dtype.str.encode() + values.tobytes()
        return self._kept.setdefault(key, values).ctypes.data

    def number(self, value: float) -> int:
        """Address of one float32 (that of a vector of it)."""
        return self.keep(np.full(16, value, np.float32))

    def optional_vector(self, name: str, *shape: int, part: Part | None = None) -> int:
        """Address as `vector` gives it, 0 when the tensor is absent."""
        return self.vector(name, *shape, part=part) if self.has(name) else 0

    def values(self, name: str, *shape: int) -> npt.NDArray[np.float32]:
        """A tensor of this shape for Python, float32 in the file's order."""
        info = self.info(name)
        self._check_shape(info, shape)
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
            return self.find_type(info.type)
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
