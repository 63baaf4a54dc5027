"""`python -m tests.isa_digest MODEL...`: which instruction-set path runs here, and a digest of each model's logits.

A script of its own because Numba's CPU features are fixed when a process starts. Prints one JSON object.
"""

import json
import sys
from pathlib import Path

from tests import engine_runs as runs

N_TOKENS = 45


def digest_of(path: Path) -> str:
    """A prompt in chunks of 16 and then token by token, so that both the tile and the one-token kernels take part."""
    with runs.context(path, n_threads=2, kv="f16", n_ctx=128) as ctx:
        seq = ctx.new_sequence()
        ids = runs.random_ids(N_TOKENS, 100, seed=4)
        parts = [ids[0:16], ids[16:32], *([token] for token in ids[32:])]
        rows = [runs.feed(ctx, [(seq, part)]) for part in parts]
    return "".join(runs.digest(r)[:16] for r in rows)


def main(paths: list[str]) -> None:
    """Prints {"path": name of the instruction-set path, "digests": {file: digest}}."""
    from llmkit.simd import target

    json.dump({"path": target.path(), "digests": {p: digest_of(Path(p)) for p in paths}}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
