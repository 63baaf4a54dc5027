"""What the tests of states share: sizes of a tiny model, token ids, and whether a context's blocks add up."""

import numpy as np

from tests import engine_runs as runs

runs.need_engine()

from llmkit.engine.context import Context  # noqa: E402

N_VOCAB = 131
SIZES = {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_vocab": N_VOCAB, "n_ctx_train": 4096}
IDS = runs.random_ids(400, N_VOCAB, seed=4)


def counted(ctx: Context) -> bool:
    """Whether each block has one reference for each sequence that lies in it, and is free where it has none."""
    for k, pool in enumerate(ctx.kv.pools):
        refs = np.zeros(pool.n_blocks, int)
        for seq in ctx.kv.sequences:
            refs[seq.chain.blocks(k)] += 1
        if not (pool.n_refs_of(np.arange(pool.n_blocks)) == refs).all() or pool.n_used != (refs > 0).sum():
            return False
        arena = pool.data.ctypes.data + np.arange(pool.n_blocks) * pool.block_bytes
        mapped = [block for block in range(pool.n_blocks) if pool.addresses[block] != arena[block]]
        if pool.n_mapped != len(mapped) or not all(refs[block] for block in mapped):
            return False
    return True
