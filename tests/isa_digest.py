"""`python -m tests.isa_digest MODEL...`: which instruction-set path runs here, and a digest of each model's logits.

A script of its own because Numba's CPU features are fixed when a process starts. Prints one JSON object.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests import engine_runs as runs

# Between them every kind of code is read and written as K and as V; q4_0 and q4_1 are q5_0 and q5_1 without a bit.
KV_PAIRS = ("bf16", "q8_0/iq4_nl", "iq4_nl/q8_0", "q5_0/q5_1", "q5_1/q5_0")
N_TOKENS, N_TOKENS_LARGE, LARGE_BYTES = 45, 19, 50_000_000  # the generic path takes its time


def digest_of(path: Path, kv: str = "f16") -> str:
    """A prompt in chunks of 16 and then token by token, so that both the tile and the one-token kernels take part."""
    with runs.context(path, n_threads=2, kv=kv, n_ctx=128) as ctx:
        seq = ctx.new_sequence()
        n = N_TOKENS_LARGE if path.stat().st_size > LARGE_BYTES else N_TOKENS
        ids, whole = runs.random_ids(n, 100, seed=4), n // 16 * 16
        parts = [*(ids[i : i + 16] for i in range(0, whole, 16)), *([token] for token in ids[whole:])]
        rows = [runs.feed(ctx, [(seq, part)]) for part in parts]
    return "".join(runs.digest(r)[:16] for r in rows)


def sampling_digest() -> str:
    """Of the probabilities that some chains leave, and of what is drawn from them."""
    from llmkit.engine.generation.sampler import Sampler
    from llmkit.params import SamplingParams

    chains: list[dict[str, Any]] = [
        {}, {"top_k": 0, "top_p": 0.9, "temp": 1.3}, {"typical_p": 0.9, "dynatemp_range": 0.5}, {"mirostat": 1}
    ]  # fmt: skip
    found = hashlib.sha256()
    for seed, chain in enumerate(chains):
        sampler = Sampler(SamplingParams(seed=seed, **chain))
        for step in range(8):
            row = np.random.default_rng(step).normal(0, 3, 4099).astype(np.float32)
            found.update(sampler.candidates(row).weights[0].tobytes())
            found.update(sampler.sample(row).to_bytes(8, "little"))
    return found.hexdigest()


def quantize_digest() -> str:
    """Of the bytes of one type for each kind of search, with and without importance."""
    from llmkit.files.ggml_types import TYPE_IDS
    from tests.quants.quantize_cases import importance_of, ours, rows_of

    found = hashlib.sha256()
    for name in ("Q8_0", "Q4_0", "Q3_K", "Q4_K", "IQ4_NL"):
        for _, importance in list(importance_of(512))[:2]:
            for _, rows in rows_of(512):
                found.update(ours(TYPE_IDS[name], rows, importance).tobytes())
    return found.hexdigest()


def main(paths: list[str]) -> None:
    """Prints {"path": name of the instruction-set path, "digests": {file, or KV types with the first file: digest}}."""
    from llmkit.simd import target

    digests = (
        {"sampling": sampling_digest(), "quantize": quantize_digest()}
        | {kv: digest_of(Path(paths[0]), kv) for kv in KV_PAIRS}
        | {p: digest_of(Path(p)) for p in paths}
    )
    json.dump({"path": target.path(), "digests": digests}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
