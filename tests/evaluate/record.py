"""Records what llama-perplexity says about the samples: `python -m tests.evaluate.record PATH_OF_LLAMA_PERPLEXITY`.

The outputs under data/ come from build 11434. It ends without waiting for its log: the last lines are often missing, so
each run is repeated until the wanted ones are there, and tasks stand in the file twice. Its winogrande reader loses the
last line of a file, so it gets an empty one more.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.evaluate.samples import (
    DATA,
    MULTIPLE_CHOICE_TASKS,
    TEXT,
    base_file,
    hellaswag_file,
    multiple_choice_file,
    winogrande_file,
)
from tests.paths import DATA as SHARED_DATA

MODEL = SHARED_DATA / "stories260K.gguf"
N_CTX, N_CHUNKS, N_VOCAB = 64, 9, 512


class Recorder:
    """Runs the binary on files in a folder."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder

    def file(self, name: str, data: bytes) -> str:
        """Puts a file into the folder."""
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def run(self, wanted: str, *args: str) -> str:
        """stdout, once it holds what is wanted."""
        command = [self.binary, "-m", str(MODEL), "-t", "2", "-ctk", "f32", "-ctv", "f32", *args]
        for _ in range(50):
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            if wanted in out:
                return out
        raise RuntimeError(f"{wanted!r} never came: {out}")

    def record(self, name: str, wanted: str, *args: str) -> None:
        """Writes stdout to data/name."""
        (DATA / name).write_text(self.run(wanted, *args))


def main(binary: str) -> None:
    """Writes all files under data/."""
    with TemporaryDirectory() as name:
        here = Recorder(binary, Path(name))
        text = here.file("text", TEXT.encode())
        here.record("ppl.txt", "[9]", "-f", text, "-c", "64")
        here.record("ppl_type_1.txt", "     512  ", "-f", text, "-c", "64", "-b", "64", "--ppl-output-type", "1")
        here.record("ppl_stride.txt", "[3]", "-f", text, "-c", "32", "-b", "32", "--ppl-stride", "20", "--chunks", "3")
        here.run("", "-f", text, "-c", "16", "--chunks", "2", "--save-all-logits", str(DATA / "c16.logits"))
        here.record("kl.txt", "Same top p: ", "-f", text, "-c", str(N_CTX), *kl_arguments(here, text))
        tasks(here)


def kl_arguments(here: Recorder, text: str) -> list[str]:
    """The made-up base file, over the text's tokens as llama.cpp cuts it."""
    whole = str(here.folder / "whole")
    here.run("", "-f", text, "-c", str(N_CTX), "--save-all-logits", whole)
    tokens = np.fromfile(whole, "<i4", N_CTX * N_CHUNKS, offset=20)
    base = here.file("base", base_file(tokens, N_CTX, N_VOCAB))
    return ["--kl-divergence", "--kl-divergence-base", base]


def tasks(here: Recorder) -> None:
    """Those of the three kinds, in order or some random ones."""
    hellaswag = here.file("hellaswag", hellaswag_file().encode())
    here.record("hellaswag.txt", "\n6\t", "-f", hellaswag, "--hellaswag", "--hellaswag-tasks", "8")
    twice = here.file("twice", winogrande_file().encode() * 2 + b"\n")
    here.record("winogrande.txt", "\n6\t", "-f", twice, "--winogrande")
    once = here.file("once", winogrande_file().encode() + b"\n")
    here.record("winogrande_some.txt", "\n3\t", "-f", once, "--winogrande", "--winogrande-tasks", "5")
    twice = here.file("twice", multiple_choice_file(MULTIPLE_CHOICE_TASKS * 2))
    few = "--multiple-choice-tasks"
    here.record("multiple_choice.txt", "\n5\t", "-bf", twice, "--multiple-choice", "-np", "5")
    here.record("multiple_choice_some.txt", "\n5\t", "-bf", twice, "--multiple-choice", "-np", "5", few, "7")


if __name__ == "__main__":
    main(sys.argv[1])
