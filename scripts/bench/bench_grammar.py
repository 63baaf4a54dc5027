"""What a JSON schema or a grammar costs of the decode speed: runs with it and without it in turns, in one process.

Owns the grammars and the turns. Each run generates the same number of tokens from the same prompt with the default
chain; the first run of each kind is not counted. Ends with 2 if a schema costs more than 10% of the speed.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import Generation
from llmkit.engine.generation.sampler import Sampler
from llmkit.models.model import load_model
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from llmkit.sampling.grammar import Grammar, GrammarCompiler
from llmkit.tokenizer import load_tokenizer
from scripts.bench.models import find_model

BOUND = 0.10
EXIT_MISSED = 2
PROMPT = "Here are the people of the village, each with a story, as JSON:\n"
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 30},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "trade": {"enum": ["baker", "smith", "farmer", "weaver"]},
            "story": {"type": "string", "minLength": 40, "maxLength": 400},
            "married": {"type": "boolean"},
        },
        "required": ["name", "age", "trade", "story", "married"],
        "additionalProperties": False,
    },
}
JSON_GBNF = r"""
root   ::= "[" ws object ("," ws object){100} "]" ws
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def run_once(ctx: Context, tokenizer: Any, grammar: Grammar | None, n_predict: int) -> tuple[float, float]:
    """Tokens a second of one generation, by the clock and by the CPU time of all threads."""
    ctx.memory.clear()
    params = SamplingParams(seed=1, ignore_eos=True)
    sampler = Sampler(params, tokenizer.eog_ids, tokenizer, None if grammar is None else grammar.clone())
    generation = Generation(
        ctx, ctx.memory.sequence(0), tokenizer.encode(PROMPT), sampler, GenerateParams(n_predict, 512),
        tokenizer.eog_ids, tokenizer.stream(),
    )  # fmt: skip
    cpu, n = 0.0, 0
    for n, _ in enumerate(generation):
        if n == 0:
            cpu = time.process_time()
    return n / generation.timings.decode_s, n / (time.process_time() - cpu)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The medians of the turns of one model."""
    model = load_model(find_model(name), n_threads=options.threads)
    tokenizer = load_tokenizer(model.gguf)
    began = time.perf_counter()
    compiler = GrammarCompiler(tokenizer, model.config.n_vocab)
    grammars = {
        "none": None,
        "JSON schema": compiler.from_json_schema(SCHEMA),
        "JSON in GBNF": compiler.from_gbnf(JSON_GBNF),
    }
    set_up_s = time.perf_counter() - began
    runs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in grammars}
    with Context(model, ContextParams(2048, n_threads=options.threads)) as ctx:
        for turn in range(options.rounds + 1):
            for kind, grammar in grammars.items():
                speeds = run_once(ctx, tokenizer, grammar, options.n_predict)
                if turn:
                    runs[kind].append(speeds)
    result: dict[str, Any] = {"model": model.name, "set_up_s": round(set_up_s, 3)}
    for kind, measured in runs.items():
        # Runs of one turn share what else the machine did then, so the ratio is taken within a turn.
        ratios = [speed[0] / plain[0] for speed, plain in zip(measured, runs["none"], strict=True)]
        cpu = [speed[1] / plain[1] for speed, plain in zip(measured, runs["none"], strict=True)]
        result[kind] = {
            "tokens_per_second": round(median(speed[0] for speed in measured), 2),
            "cost": round(1 - median(ratios), 4),
            "cost_in_cpu_time": round(1 - median(cpu), 4),
        }
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measures each model and shows a line for each grammar."""
    options = _parser().parse_args(arguments)
    results = [measure(name, options) for name in options.models]
    if options.json:
        report.result(json.dumps(results))
    else:
        rows = [
            [
                result["model"],
                kind,
                value["tokens_per_second"],
                f"{value['cost']:.1%}",
                f"{value['cost_in_cpu_time']:.1%}",
            ]
            for result in results
            for kind, value in result.items()
            if isinstance(value, dict)
        ]
        report.result_table(rows, ("model", "grammar", "t/s", "cost", "cost in CPU time"))
    missed = [result["model"] for result in results if result["JSON schema"]["cost"] > BOUND]
    for model in missed:
        report.note(f"missed: a JSON schema costs more than {BOUND:.0%} with {model}")
    return EXIT_MISSED if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_grammar", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2", "qwen"], help="files or names")
    parser.add_argument("-n", "--n-predict", type=int, default=200, help="tokens of a run (200)")
    parser.add_argument("-t", "--threads", type=int, default=0, help="threads (as many as there are cores)")
    parser.add_argument("--rounds", type=int, default=5, help="turns, each with one run of every kind (5)")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    return parser


if __name__ == "__main__":
    raise SystemExit(guarded(main))
