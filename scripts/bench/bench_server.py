"""First-token and between-token times, throughput and reuse of a running server, over numbers of clients at once.

Owns the bursts and their table. In a burst all clients ask at the same moment, each for one long prefix that all share
and a short tail of its own: cold, with a prefix that nobody asked for before, then warm, with one that has just been
computed. Two servers are measured in turns, burst by burst, with the same prompts.
"""

import argparse
import math
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import LlmkitError, UsageError
from scripts.bench.server_client import Sample, Target, text_of, words


@dataclass(frozen=True)
class Row:
    """All bursts of one server at one number of clients. Times in seconds; prompt_n: computed tokens of a burst."""

    server: str
    n_clients: int
    warm: bool
    n_requests: int
    first_p50: float
    first_p90: float
    first_p99: float
    first_max: float
    gap_p50: float
    gap_p90: float
    gap_p99: float
    tokens_per_s: float
    decode_per_s: float
    prompt_n: float | None
    reuse: float | None


def main() -> int:
    """Measures, shows a line a row as it is there, then how two servers compare."""
    options = _parser().parse_args()
    targets = [Target(f"http://{options.host}:{options.port}{options.api_prefix}", options.api, options.key)]
    targets += [Target(url.rstrip("/"), options.api, options.key) for url in options.against or ()]
    clients = _numbers(options.parallel)
    rows: list[Row] = []
    if not options.json:
        report.result(HEADER)
    for n_clients in clients:
        for warm in (False, True):
            samples: dict[str, list[list[Sample]]] = {target.name: [] for target in targets}
            for i in range(options.requests):
                seed = options.seed + 1000 * len(rows) + i
                for target in targets if i % 2 == 0 else targets[::-1]:
                    samples[target.name].append(burst(target, n_clients, options, seed, warm))
            for target in targets:
                rows.append(row_of(target.name, n_clients, warm, samples[target.name]))
                if not options.json:
                    report.result(line_of(rows[-1]))
    tails = tails_together(targets[0], max(clients), options) if options.tails else None
    if options.json:
        report.result_json({"settings": _settings(options), "tails_s": tails, "rows": [asdict(row) for row in rows]})
    else:
        for line in verdict(rows, [target.name for target in targets], tails):
            report.result(line)
    if options.plot:
        plot(rows, Path(options.plot))
    return 0


def burst(target: Target, n_clients: int, options: argparse.Namespace, seed: int, warm: bool) -> list[Sample]:
    """All clients at once. warm: one asks before, and is not counted."""
    prefix = text_of(target, options.prefix_tokens, seed)
    if warm:
        target.complete(f"{prefix} Q0:", 1)
    samples: list[Sample | LlmkitError] = []
    barrier = threading.Barrier(n_clients)

    def ask(i: int) -> None:
        prompt = f"{prefix} Question {i}: {words(options.tail_words, 1000 * seed + i)}"
        barrier.wait()
        try:
            samples.append(target.complete(prompt, options.n_predict))
        except LlmkitError as error:
            samples.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sample in samples:
        if isinstance(sample, LlmkitError):
            raise sample
    return [sample for sample in samples if isinstance(sample, Sample)]


def tails_together(target: Target, n_clients: int, options: argparse.Namespace) -> float:
    """The first token's time of one client whose prefix is there and whose tail is as long as all tails together."""
    times = []
    for i in range(options.requests):
        prefix = text_of(target, options.prefix_tokens, options.seed + 777 + i)
        target.complete(f"{prefix} Q0:", 1)
        tail = " ".join(f"Question {j}: {words(options.tail_words, 31 * i + j)}" for j in range(n_clients))
        times.append(target.complete(f"{prefix} {tail}", 1).first_s)
    return statistics.median(times)


def percentile(values: Sequence[float], p: float) -> float:
    """The value that p percent of the values do not exceed (nearest rank); 0 of none."""
    rank = math.ceil(len(values) * p / 100)
    return sorted(values)[max(rank, 1) - 1] if values else 0.0


def row_of(server: str, n_clients: int, warm: bool, bursts: Sequence[Sequence[Sample]]) -> Row:
    """What bursts come to."""
    samples = [sample for one in bursts for sample in one]
    firsts = [sample.first_s for sample in samples]
    gaps = [gap for sample in samples for gap in sample.gaps_s]
    walls = [max(s.began + s.end_s for s in one) - min(s.began for s in one) for one in bursts]
    # From when all have their first token: nobody's prompt is computed any more.
    decoded, decoding = 0, 0.0
    for one in bursts:
        start, end = max(s.began + s.first_s for s in one), max(s.began + s.end_s for s in one)
        for s in one:
            ends = s.began + s.first_s
            for gap in s.gaps_s:
                ends += gap
                decoded += ends > start
        decoding += end - start
    told = [sample for sample in samples if sample.prompt_n is not None and sample.cache_n is not None]
    computed, cached = sum(s.prompt_n or 0 for s in told), sum(s.cache_n or 0 for s in told)
    return Row(
        server, n_clients, warm, len(samples), *(percentile(firsts, p) for p in (50, 90, 99, 100)),
        *(percentile(gaps, p) for p in (50, 90, 99)), sum(s.n_tokens for s in samples) / max(sum(walls), 1e-9),
        decoded / decoding if decoding > 0 else 0.0, computed / len(bursts) if told else None,
        cached / (computed + cached) if told and computed + cached else None,
    )  # fmt: skip


HEADER = (
    f"{'server':<22}{'clients':>8}{'prefix':>7} | {'first p50':>10}{'p90':>8}{'p99':>8}{'max':>8} |"
    f" {'between p50':>12}{'p90':>8}{'p99':>8} | {'tok/s':>8}{'decode':>8} | {'computed':>9}{'reuse':>7}"
)


def line_of(row: Row) -> str:
    """A row of the table; times in milliseconds."""
    firsts = f"{row.first_p50 * 1e3:>10.0f}{row.first_p90 * 1e3:>8.0f}{row.first_p99 * 1e3:>8.0f}"
    gaps = f"{row.gap_p50 * 1e3:>12.1f}{row.gap_p90 * 1e3:>8.1f}{row.gap_p99 * 1e3:>8.1f}"
    computed = "-" if row.prompt_n is None else f"{row.prompt_n:.0f}"
    reuse = "-" if row.reuse is None else f"{100 * row.reuse:.1f}%"
    return (
        f"{row.server:<22}{row.n_clients:>8}{'warm' if row.warm else 'cold':>7} | {firsts}{row.first_max * 1e3:>8.0f} |"
        f" {gaps} | {row.tokens_per_s:>8.1f}{row.decode_per_s:>8.1f} | {computed:>9}{reuse:>7}"
    )


def verdict(rows: Sequence[Row], servers: Sequence[str], tails: float | None) -> list[str]:
    """How many clients fare beside one, and the first server beside the others."""

    def find(server: str, n: int, warm: bool) -> Row:
        return next(row for row in rows if (row.server, row.n_clients, row.warm) == (server, n, warm))

    most, least, lines = max(row.n_clients for row in rows), min(row.n_clients for row in rows), [""]
    ours = find(servers[0], most, True)
    cold, one = find(servers[0], most, False), find(servers[0], least, False)
    if cold.prompt_n and one.prompt_n:
        lines.append(
            f"cold: {most} clients had {cold.prompt_n:.0f} prompt tokens computed, {least} had {one.prompt_n:.0f}: "
            f"{cold.prompt_n / one.prompt_n:.2f} times"
        )
    if tails is not None:
        lines.append(f"one client with all {most} tails in its prompt has its first token after {tails * 1e3:.0f} ms")
    for other in servers[1:]:
        theirs, alone = find(other, most, True), find(other, least, True)
        lines.append(
            f"warm: first token of {most} clients {ours.first_p50 * 1e3:.0f} ms; {other}: {theirs.first_p50 * 1e3:.0f} "
            f"ms, {theirs.first_p50 / ours.first_p50:.1f} times; of {least} client {alone.first_p50 * 1e3:.0f} ms"
        )
        if tails is not None:
            bound = alone.first_p50 + 1.3 * tails
            lines.append(f"the bound of {other}'s one client and 1.3 times the tails: {bound * 1e3:.0f} ms")
        for n in sorted({row.n_clients for row in rows}):
            times = find(servers[0], n, True).decode_per_s / max(find(other, n, True).decode_per_s, 1e-9)
            lines.append(f"decoding, {n} clients: {times:.2f} times the tokens of {other}")
    return lines


def plot(rows: Sequence[Row], path: Path) -> None:
    """First-token times and throughput over the number of clients."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("--plot needs matplotlib", "pip install 'llmkit[bench]'") from None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for server in dict.fromkeys(row.server for row in rows):
        for warm, style in ((False, "--"), (True, "-")):
            mine = [row for row in rows if row.server == server and row.warm == warm]
            n, label = [row.n_clients for row in mine], f"{server}, {'warm' if warm else 'cold'}"
            left.plot(n, [row.first_p50 for row in mine], style, marker="o", label=label)
            right.plot(n, [row.tokens_per_s for row in mine], style, marker="o", label=label)
    left.set(xlabel="clients at once", ylabel="first token, median, s", yscale="log")
    right.set(xlabel="clients at once", ylabel="tokens/s, all together")
    left.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise UsageError(f"--parallel is {text!r}", "Write numbers with commas between them, such as 1,2,4.")
    return found


def _settings(options: argparse.Namespace) -> dict[str, object]:
    shown = {name: value for name, value in vars(options).items() if name != "key"}
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **shown}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_server", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-prefix", default="")
    parser.add_argument("--api", choices=("native", "openai"), default="native")
    parser.add_argument("--key", help="an API key")
    parser.add_argument("--parallel", default="1,2,4,8,10", metavar="N,...", help="clients at once")
    parser.add_argument("--prefix-tokens", type=int, default=1200, metavar="N", help="tokens that all share")
    parser.add_argument("--tail-words", type=int, default=8, metavar="N", help="words of each one's own")
    parser.add_argument("--n-predict", type=int, default=32, metavar="N", help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=3, metavar="N", help="requests of each client, a burst each")
    parser.add_argument("--seed", type=int, default=1, help="other prompts")
    parser.add_argument("--against", action="append", metavar="URL", help="another server, in turns with the first")
    parser.add_argument("--tails", action="store_true", help="also the time of all tails in one prompt")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg or .pdf; needs matplotlib)")
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main))
