"""Numba types that carry LLVM vectors, and `operation`, which turns an emitter's code into a callable for kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from llmkit.simd import emitter as em
from llmkit.simd import target
from llmkit.simd.arm import NeonDotprod
from llmkit.simd.x86 import Avx2, Avx512Vnni

EMITTERS = {"avx512vnni": Avx512Vnni, "avx2": Avx2, "neon": NeonDotprod, "generic": em.Emitter}
Emitter = EMITTERS[target.path()]


class VectorType(types.Type):
    """A Numba type that is one LLVM vector; it lives in registers, never in an array."""

    def __init__(self, name: str, llvm_type: ir.Type) -> None:
        self.llvm_type = llvm_type
        super().__init__(name=name)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: VectorType) -> None:
        super().__init__(manager, numba_type, numba_type.llvm_type)


f32x16 = VectorType("f32x16", em.F32X16)
i32x16 = VectorType("i32x16", em.I32X16)
i8x64 = VectorType("i8x64", em.I8X64)

_LLVM = {types.int64: em.I64, types.int32: em.I32, types.float32: em.F32, types.float64: em.F64}


def operation(result: types.Type, *args: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: `emit(e, *values) -> value` becomes a function for Numba kernels with this signature.

    `args` are Numba types; an argument of the kernel's call is cast to them. `emit` gets an `Emitter` and IR values.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            out = emit(Emitter(builder), *values)
            return context.get_dummy_value() if result is types.void else out

        def typed(_typingctx: Any, *_types: Any) -> Any:
            return result(*args), codegen

        # Numba takes an intrinsic's arity from its signature.
        names = ["typingctx", *(f"a{i}" for i in range(len(args)))]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        typed.__name__ = typed.__qualname__ = emit.__name__
        typed.__doc__ = emit.__doc__
        return intrinsic(typed)

    return decorate
