"""Matmul tiles lower to the machine code that each instruction set was chosen for, AArch64 included."""

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from llmkit.quants.formats import Block32Format
from llmkit.quants.iq4_xs import FORMAT as IQ4_XS
from llmkit.quants.super_block import Q6KFormat, ScaleMinFormat
from llmkit.quants.tile import TileFormat, _emit_tokens
from llmkit.simd import emitter as em
from llmkit.simd.arm import NeonDotprod
from llmkit.simd.x86 import Avx2, Avx512Vnni

FORMATS = [Block32Format(4, has_min=True), Block32Format(8, has_min=False), ScaleMinFormat(5), Q6KFormat()]
MACHINES = {
    "avx512vnni": (Avx512Vnni, "x86_64-linux-gnu", "+avx512f,+avx512bw,+avx512vl,+avx512vnni,+f16c,+fma", "vpdpbusd"),
    "avx2": (Avx2, "x86_64-linux-gnu", "+avx2,+f16c,+fma", "vpmaddubsw"),
    "neon": (NeonDotprod, "aarch64-linux-gnu", "+neon,+dotprod", "sdot"),
    "generic": (em.Emitter, "x86_64-linux-gnu", "+sse2", "mul"),
}


def assemble(fmt: TileFormat, emitter: type[em.Emitter], triple: str, features: str) -> str:
    """Assembly of the format's tile for eight tokens."""
    module = ir.Module()
    module.triple = triple
    kind = ir.FunctionType(ir.VoidType(), [em.I64] * 7)
    function = ir.Function(module, kind, "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    _emit_tokens(emitter(builder), fmt, 8, tuple(function.args))
    builder.ret_void()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=2)
    return machine.emit_assembly(parsed)


@pytest.fixture(scope="module", autouse=True)
def all_targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{type(fmt).__name__}-{fmt.tile_bytes}")
@pytest.mark.parametrize("name", ["avx512vnni", "avx2", "neon"])
def test_a_tile_uses_the_byte_dot_product_of_its_machine(name: str, fmt: TileFormat) -> None:
    emitter, triple, features, instruction = MACHINES[name]
    assert instruction in assemble(fmt, emitter, triple, features)


def test_without_any_extension_a_tile_still_lowers() -> None:
    emitter, triple, features, instruction = MACHINES["generic"]
    assert instruction in assemble(FORMATS[0], emitter, triple, features)


@pytest.mark.parametrize(("name", "instruction"), [("avx512vnni", "vpshufb"), ("avx2", "vpshufb"), ("neon", "tbl")])
def test_a_table_of_values_is_looked_up_by_one_instruction(name: str, instruction: str) -> None:
    emitter, triple, features, _ = MACHINES[name]
    assert instruction in assemble(IQ4_XS, emitter, triple, features)
