"""What ends the work, and what is left then; shapes; memory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmkit.files.atomic import finished_file
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from tests.paths import REPO_ROOT
from tests.tools.in_process import run_llmkit

METADATA = {"general.architecture": "llama", "llama.block_count": 1}
NAME = "blk.0.ffn_up.weight"


def write_one(path: Path, values: np.ndarray, name: str = NAME, type: int = 0) -> Path:  # type: ignore[type-arg]
    """A file with one tensor; the shape of `values` from the slowest dimension to the row."""
    write_gguf(path, METADATA, [TensorData(name, tuple(reversed(values.shape)), type, values)])
    return path


def good(n_rows: int = 4, n_columns: int = 64) -> np.ndarray:  # type: ignore[type-arg]
    """Some weights."""
    return np.linspace(-1, 1, n_rows * n_columns, dtype=np.float32).reshape(n_rows, n_columns)


def left_in(folder: Path) -> set[str]:
    """All that lies there, hidden files too."""
    return set(os.listdir(folder))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type", ["Q8_0", "F16", "COPY"])
def test_weights_that_are_no_numbers(tmp_path: Path, bad: float, type: str) -> None:
    values = good()
    values[2, 33] = bad
    write_one(tmp_path / "in.gguf", values)
    (tmp_path / "out.gguf").write_bytes(b"old")
    done = run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), type)
    assert done.returncode == 1
    assert NAME in done.stderr
    assert f"holds {bad}" in done.stderr
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert left_in(tmp_path) == {"in.gguf", "out.gguf"}


@pytest.mark.parametrize("type", ["Q8_0", "F16"])
def test_weights_that_become_infinite(tmp_path: Path, type: str) -> None:
    write_one(tmp_path / "in.gguf", good() * np.float32(1e30))
    done = run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), type)
    assert done.returncode == 1
    assert NAME in done.stderr
    assert "65504" in done.stderr
    assert left_in(tmp_path) == {"in.gguf"}


@pytest.mark.parametrize("shape", [(3, 1), (3, 33), (2, 128), (2, 4544), (2, 3, 64), (2, 2, 3, 64), (1, 64)])
def test_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Rows that do not fit a block become F16; every row of every matrix is in its place."""
    values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    write_one(tmp_path / "in.gguf", values)
    done = run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "Q8_0", "3")
    assert done.returncode == 0, done.stderr
    with open_gguf(tmp_path / "out.gguf") as gguf:
        info = gguf.tensors[NAME]
        raw = gguf.tensor_bytes(NAME).copy()
    kind = "F32" if shape[0] == 1 else "F16" if shape[-1] % 32 else "Q8_0"
    assert info.type_name == kind
    assert ("fallback" in done.stderr) == (kind == "F16")
    if kind == "F16":
        assert np.array_equal(raw.view(np.float16), values.astype(np.float16).reshape(-1))
    elif kind == "Q8_0":
        blocks = raw.reshape(-1, 34)
        back = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].view(np.int8)
        assert np.abs(back.reshape(shape) - values).max() < 0.005


def test_the_input_is_not_the_output(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good())
    before = source.read_bytes()
    (tmp_path / "soft.gguf").symlink_to(source)
    os.link(source, tmp_path / "hard.gguf")
    for name in ("in.gguf", "soft.gguf", "hard.gguf", "../" + tmp_path.name + "/in.gguf"):
        done = run_llmkit("quantize", str(source), str(tmp_path / name), "Q8_0")
        assert done.returncode == 1
        assert "input and output files are the same" in done.stderr
    assert source.read_bytes() == before
    assert len(left_in(tmp_path)) == 3


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good())
    (tmp_path / "old.gguf").write_bytes(b"old")
    (tmp_path / "old.gguf").chmod(0o444)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    wanted = {
        "old.gguf": "read-only",
        "folder": "a directory",
        "fifo": "no regular file",
        "no/x.gguf": "no such folder",
    }
    for name, says in wanted.items():
        done = run_llmkit("quantize", str(source), str(tmp_path / name), "Q8_0")
        assert done.returncode == 1
        assert says in done.stderr
    assert (tmp_path / "old.gguf").read_bytes() == b"old"
    assert left_in(tmp_path) == {"in.gguf", "old.gguf", "folder", "fifo"}


def test_a_link_to_the_target_is_followed(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good())
    (tmp_path / "real.gguf").write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to("real.gguf")
    assert run_llmkit("quantize", str(source), str(tmp_path / "link.gguf"), "Q8_0").returncode == 0
    assert (tmp_path / "link.gguf").is_symlink()
    with open_gguf(tmp_path / "real.gguf") as gguf:
        assert gguf.tensors[NAME].type_name == "Q8_0"


def test_no_room(tmp_path: Path) -> None:
    """A file may not grow beyond a limit, as on a full disk: an error, and what was there stays."""
    source = write_one(tmp_path / "in.gguf", good(512, 512))
    (tmp_path / "out.gguf").write_bytes(b"old")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from llmkit.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "quantize", str(source), str(tmp_path / "out.gguf"), "Q8_0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO_ROOT)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert left_in(tmp_path) == {"in.gguf", "out.gguf"}


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_interrupted(tmp_path: Path, number: int, expected: int) -> None:
    source = write_one(tmp_path / "in.gguf", np.zeros((2000, 32 * 1024), np.float32) + np.float32(0.5))
    (tmp_path / "out.gguf").write_bytes(b"old")
    command = [sys.executable, "-m", "llmkit", "quantize", str(source), str(tmp_path / "out.gguf"), "Q8_0", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO_ROOT)
    while process.poll() is None and len(left_in(tmp_path)) < 3:
        time.sleep(0.002)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == expected
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert left_in(tmp_path) == {"in.gguf", "out.gguf"}


def test_a_quantised_source(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good())
    assert run_llmkit("quantize", str(source), str(tmp_path / "q8.gguf"), "Q8_0").returncode == 0
    done = run_llmkit("quantize", str(tmp_path / "q8.gguf"), str(tmp_path / "f16.gguf"), "F16")
    assert done.returncode == 1
    assert "requantizing from type q8_0 is disabled" in done.stderr
    allowed = ("--allow-requantize", str(tmp_path / "q8.gguf"), str(tmp_path / "f16.gguf"), "F16")
    assert run_llmkit("quantize", *allowed).returncode == 0
    with open_gguf(tmp_path / "f16.gguf") as gguf:
        back = gguf.tensor_bytes(NAME).view(np.float16).astype(np.float32)
    assert np.abs(back - good().reshape(-1)).max() < 0.006


def _with_importance(tmp_path: Path, sums: np.ndarray, type: str = "Q8_0") -> tuple[int, str]:  # type: ignore[type-arg]
    source = write_one(tmp_path / "in.gguf", good(8, 256))
    entry = ImatrixEntry(sums.astype(np.float32), np.full(len(sums), 10, np.float32))
    write_imatrix(tmp_path / "i.gguf", Imatrix({NAME: entry}, ["x"], 1, 512))
    done = run_llmkit("quantize", "--imatrix", str(tmp_path / "i.gguf"), str(source), str(tmp_path / "o.gguf"), type)
    return done.returncode, done.stderr


def test_importance_of_another_model(tmp_path: Path) -> None:
    """Where no name matches, the tensors are quantised without, and a warning counts them."""
    source = write_one(tmp_path / "in.gguf", good(8, 256))
    entry = ImatrixEntry(np.ones((1, 256), np.float32), np.ones(1, np.float32))
    warning = "1 tensor(s) are not in the importance matrix"
    for name in ("blk.9.attn_v.weight", NAME):
        write_imatrix(tmp_path / "i.gguf", Imatrix({name: entry}, ["x"], 1, 512))
        arguments = ("--imatrix", str(tmp_path / "i.gguf"), str(source), str(tmp_path / "o.gguf"), "Q4_0")
        assert (warning in run_llmkit("quantize", *arguments).stderr) == (name != NAME)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_importance_that_is_no_number(tmp_path: Path, bad: float) -> None:
    sums = np.ones((1, 256))
    sums[0, 7] = bad
    code, err = _with_importance(tmp_path, sums)
    assert code == 1
    assert ("negative values" if bad == -1 else "NaN or infinity") in err
    assert NAME in err


def test_importance_of_another_size(tmp_path: Path) -> None:
    code, err = _with_importance(tmp_path, np.ones((1, 128)))
    assert code == 1
    assert f"imatrix size 128 is different from tensor size 256 for '{NAME}'" in err
    assert left_in(tmp_path) == {"in.gguf", "i.gguf"}


def test_importance_of_zeros(tmp_path: Path) -> None:
    assert _with_importance(tmp_path, np.zeros((1, 256)), "IQ4_XS")[0] == 0


def test_importance_is_needed_and_missing(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good(8, 256))
    done = run_llmkit("quantize", str(source), str(tmp_path / "o.gguf"), "IQ2_XXS")
    assert done.returncode == 1
    assert "requires an importance matrix" in done.stderr
    assert NAME in done.stderr
    dry = run_llmkit("quantize", "--dry-run", str(source), "IQ2_XXS")
    assert dry.returncode == 0
    assert "will require an imatrix" in dry.stderr
    assert "(iq2_xxs)" in dry.stdout
    write_imatrix(
        tmp_path / "i.dat", Imatrix({"other": ImatrixEntry(np.ones((1, 4), np.float32), np.ones(1, np.float32))})
    )
    given = ("--imatrix", str(tmp_path / "i.dat"))
    done = run_llmkit("quantize", *given, str(source), str(tmp_path / "o.gguf"), "IQ2_XXS")
    assert done.returncode == 1
    assert "is missing there" in done.stderr


def test_threads_and_buffers_do_not_change_bytes(tmp_path: Path) -> None:
    source = write_one(tmp_path / "in.gguf", good(700, 512))
    made = set()
    for i, options in enumerate(((), ("--max-buffer-size", "1"))):
        for n_threads in ("1", "3"):
            out = tmp_path / f"{i}{n_threads}.gguf"
            assert run_llmkit("quantize", *options, str(source), str(out), "Q8_0", n_threads).returncode == 0
            made.add(out.read_bytes())
    assert len(made) == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory(tmp_path: Path) -> None:
    """A file of many tensors is walked in far less memory than it takes."""
    rows = np.full((2048, 4096), 0.25, np.float32)
    tensors = [TensorData(f"blk.{i}.ffn_up.weight", (4096, 2048), 0, lambda: rows) for i in range(16)]
    write_gguf(tmp_path / "in.gguf", {**METADATA, "llama.block_count": 16}, tensors)
    code = (  # the peak of this program alone: ru_maxrss would count what it was forked from
        "import sys; from llmkit.cli import main; code = main(sys.argv[1:]);"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr); sys.exit(code)"
    )
    places = [str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf")]
    command = [sys.executable, "-c", code, "quantize", "-q", *places, "Q8_0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO_ROOT, check=True)
    kib = int(done.stderr.strip().splitlines()[-1])
    assert kib * 1024 < 3 * rows.nbytes + 300_000_000
    assert kib * 1024 < 8 * rows.nbytes


def test_finished_file_leaves_nothing(tmp_path: Path) -> None:
    def half() -> None:
        with finished_file(tmp_path / "x") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert left_in(tmp_path) == set()


def test_a_file_without_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "in.gguf", METADATA)
    assert run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf"), "Q8_0").returncode == 0
    with open_gguf(tmp_path / "o.gguf") as gguf:
        assert gguf.u32("general.file_type") == 7


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"general.architecture": None}, "general.architecture"),
        ({"llama.block_count": "x"}, "llama.block_count"),
        ({"llama.attention.head_count": [1.5, 2.5]}, "integers are expected"),
        ({"llama.expert_count": 8, "llama.block_count": 1}, "its name gives no layer"),
    ],
)
def test_metadata_that_makes_no_sense(metadata: dict[str, object], says: str, tmp_path: Path) -> None:
    keys = {key: value for key, value in {**METADATA, **metadata}.items() if value is not None}
    write_gguf(tmp_path / "in.gguf", keys, [TensorData("blk.7.ffn_up.weight", (64, 4), 0, good())])
    done = run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf"), "Q8_0")
    assert done.returncode == 1
    assert says in done.stderr
    assert "internal" not in done.stderr
    assert left_in(tmp_path) == {"in.gguf"}


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    tensors = [TensorData(name, (64, 4), 0, good()) for name in ("blk.1.ffn_up.weight", "blk.01.ffn_up.weight")]
    write_gguf(tmp_path / "in.gguf", METADATA, tensors)
    pruning = ("--prune-layers", "0", str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf"), "Q8_0")
    done = run_llmkit("quantize", *pruning)
    assert done.returncode == 1
    assert "two tensors the name" in done.stderr


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    """A matrix of integers is only ever copied."""
    write_one(tmp_path / "in.gguf", np.arange(128, dtype=np.int32).reshape(2, 64), type=26)
    done = run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf"), "Q8_0")
    assert done.returncode == 1
    assert "cannot dequantize/convert tensor type i32" in done.stderr
    assert run_llmkit("quantize", str(tmp_path / "in.gguf"), str(tmp_path / "o.gguf"), "COPY").returncode == 0
