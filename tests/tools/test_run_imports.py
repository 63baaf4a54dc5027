"""A plain `run` imports nothing that it does not need: each of these would make every start longer."""

import json
import subprocess
import sys
from pathlib import Path

from tests.make_models import make_model

NOT_NEEDED = {
    "jinja2", "llguidance", "pydantic", "pydantic_core", "zstandard", "fastapi", "starlette", "uvicorn", "httptools",
    "uvloop", "prometheus_client", "openai", "httpx", "requests", "urllib3", "matplotlib", "tqdm", "rich", "scipy",
    "numpy.testing", "multiprocessing", "asyncio",
    "llmkit.serving", "llmkit.quantization", "llmkit.evaluate", "llmkit.tokenizer.spm_merges",
    "llmkit.tokenizer.chat_template", "llmkit.sampling.gbnf", "llmkit.sampling.json_schema",
    "llmkit.engine.scheduling.scheduler", "llmkit.engine.scheduling.engine_thread", "llmkit.files.download",
    "llmkit.files.state_file",
}  # fmt: skip

RUN = """
import json, sys
from llmkit.cli import main
code = main(sys.argv[1:])
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


def test_a_plain_run(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    make_model(path, tokenizer="bpe")
    words = ["run", "-m", str(path), "-p", "a", "-n", "2", "-t", "1"]
    for _ in range(2):  # the first time, words are split by the library
        done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert "llmkit.engine.generation.generate" in modules
    assert sorted(NOT_NEEDED & set(modules)) == []
