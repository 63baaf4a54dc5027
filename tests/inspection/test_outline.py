"""What only counts says what the engine does: the same operations on the same values, the same memory."""

import inspect
from pathlib import Path

import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.files.gguf_reader import open_gguf
from llmkit.inspection.memory_need import memory_need
from llmkit.models.graph import Graph
from llmkit.models.inputs import PlanInputs
from llmkit.models.model import load_model
from llmkit.models.outline import Outline, outline_model
from llmkit.models.plan import Plan
from llmkit.models.values import Op, Value
from llmkit.params import ContextParams
from llmkit.quants.registry import TYPES, quant_type
from tests.make_archs import FILES
from tests.make_models import make_model


def tiny(folder: Path, arch: str) -> Path:
    changes: dict[str, object] = {"window": 20, "window_pattern": (1, 0)} if FILES[arch].window else {}
    return make_model(folder / "m.gguf", arch=arch, type="Q8_0", n_embd=64, n_ff=128, n_vocab=131, **changes)


def shown(ops: list[Op]) -> list[tuple[object, ...]]:
    """Operations with the numbers of their values, which are the same in both if they are used in the same way."""
    numbers: dict[Value, int] = {}

    def number(values: list[Value]) -> list[tuple[int, int, int]]:
        return [(numbers.setdefault(v, len(numbers)), v.n_cols, v.n_bytes(24)) for v in values]

    return [(op.name, op.by_rows, number(op.reads), number(op.writes)) for op in ops]


@pytest.mark.parametrize("arch", FILES)
def test_the_outline_is_the_graph(arch: str, tmp_path: Path) -> None:
    model, outlined = load_model(tiny(tmp_path, arch)), outline_model(open_gguf(tmp_path / "m.gguf"))
    graph, logits = model.build(PlanInputs(24), model.memory_layout("f16", "f16", 0), [0], model.config.n_ctx_train)
    assert shown(outlined.outline.ops) == shown(graph.ops)
    plan = Plan(graph, logits, 24, 1)
    assert outlined.outline.arena_bytes(outlined.logits, 24) == plan.arena_bytes
    assert outlined.packed_bytes == sum(matrix.packed_bytes for matrix in model.weights.matrices.values())


def test_the_outline_takes_what_the_graph_takes() -> None:
    for name, method in inspect.getmembers(Outline, inspect.isfunction):
        if name.startswith("_") or name == "arena_bytes":
            continue
        theirs = inspect.signature(getattr(Graph, name)).parameters
        assert list(inspect.signature(method).parameters) == list(theirs), name


def test_sizes_are_those_of_the_compiled_types() -> None:
    for type_id in TYPES:
        quant_type(type_id)  # asserts it


@pytest.mark.parametrize(("n_ctx", "type_k", "type_v"), [(0, "f16", "f16"), (100, "f32", "f16")])
def test_keys_and_values_are_what_a_context_takes(n_ctx: int, type_k: str, type_v: str, tmp_path: Path) -> None:
    path = tiny(tmp_path, "gemma3")
    need = memory_need(outline_model(open_gguf(path), n_ctx), n_ctx, 64, type_k, type_v)
    with Context(load_model(path), ContextParams(n_ctx=n_ctx, n_ubatch=64, type_k=type_k, type_v=type_v)) as ctx:
        assert need.n_ctx == ctx.n_ctx
        seq = ctx.memory.sequence(0)
        for first in range(0, ctx.n_ctx, 64):
            ctx.decode([Segment(seq, [1] * min(64, ctx.n_ctx - first), "none")])
        taken = [kind.bytes_peak for kind in ctx.memory.usage().kinds]
        a_block = [pool.block_bytes for pool in ctx.kv.pools]
    assert need.kv[0].n_bytes == taken[0]
    assert taken[1] <= need.kv[1].n_bytes <= taken[1] + 2 * a_block[1]
    assert [(kv.kind, kv.window, kv.n_layer) for kv in need.kv] == [("full", 0, 1), ("window", 20, 1)]
