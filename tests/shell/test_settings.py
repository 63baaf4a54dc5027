"""Where values come from: the command line, LLMKIT_ variables, llama.cpp's, the configuration file; in this order."""

from pathlib import Path

import pytest

from tests.shell.fake import install, refused, values
from tests.tools.in_process import run_llmkit


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own.toml"
    path.touch()
    monkeypatch.setenv("LLMKIT_CONFIG", str(path))
    return path


def test_the_order(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values()["top_k"] == 0
    config.write_text("top-k = 1")
    assert values()["top_k"] == 1
    config.write_text("top-k = 1\n[fake]\ntop_k = 2")
    assert values()["top_k"] == 2
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "3")
    assert values()["top_k"] == 3
    monkeypatch.setenv("LLMKIT_TOP_K", "4")
    assert values()["top_k"] == 4
    assert values("--top-k", "5")["top_k"] == 5


def test_a_variable_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"TEMP": "0.5", "STOP": "a b", "SWA_FULL": "on", "ESCAPE": "false", "MODEL": "m"}.items():
        monkeypatch.setenv(f"LLMKIT_{name}", text)
    expected = {"top_k": 0, "temp": 0.5, "stop": ["a b"], "swa_full": True, "escape": False, "model": "m"}
    assert values() == expected


def test_llama_cpps_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SWA_FULL", "enabled")
    assert values()["swa_full"] is True
    monkeypatch.setenv("LLAMA_ARG_SWA_FULL", "")
    monkeypatch.setenv("LLAMA_ARG_NO_SWA_FULL", "")
    monkeypatch.setenv("LLMKIT_SWA_FULL", "1")
    assert values()["swa_full"] is True
    monkeypatch.delenv("LLMKIT_SWA_FULL")
    assert values()["swa_full"] is False


def test_a_variable_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMKIT_TOP_K", "")
    assert values()["top_k"] == 0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("LLMKIT_TOP_K", "many", "error: LLMKIT_TOP_K: Invalid value for '--top-k'"),
        ("LLAMA_ARG_TOP_K", "many", "error: LLAMA_ARG_TOP_K: Invalid value for '--top-k'"),
        ("LLMKIT_SWA_FULL", "perhaps", "error: LLMKIT_SWA_FULL is 'perhaps'; on or off is expected"),
        ("LLMKIT_COLOR", "red", "error: --color is 'red'; on, off or auto is expected"),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    assert said in refused()


def test_a_value_that_the_command_refuses_is_told_where_from(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PREDICT", "-2")
    config.write_text("[run]\ntop-p = 2.0\n")
    hint = run_llmkit("run", "-p", "x", "--top-p", "1").stderr.splitlines()[1]
    assert hint.endswith("until it is full. --n-predict comes from LLAMA_ARG_N_PREDICT")
    hint = run_llmkit("run", "-p", "x", "-n", "1").stderr.splitlines()[1]
    assert hint.endswith(f"--top-p comes from {config}, line 2: [run] top-p")
    assert "comes from" not in run_llmkit("run", "-p", "x", "--top-p", "1", "-n", "-2").stderr


def test_help_is_never_set(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMKIT_HELP", "1")
    monkeypatch.setenv("LLMKIT_TOP_K", "4")
    assert values()["top_k"] == 4


def test_the_file_of_every_kind(config: Path) -> None:
    config.write_text('temp = 1\n[defaults]\nstop = ["x", "y"]\nescape = false\n[fake]\nswa-full = true\nmodel = "m"\n')
    expected = {"top_k": 0, "temp": 1.0, "stop": ["x", "y"], "swa_full": True, "escape": False, "model": "m"}
    assert values() == expected
    config.write_text('stop = "x"')
    assert values()["stop"] == ["x"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[fake]\ntop-kk = 1",
            "line 2: [fake] top-kk: `llmkit fake` has no option --top-kk\nhint: did you mean top-k?",
        ),
        ("\ntemperatur = 1", "line 2: temperatur: no command has an option --temperatur\nhint: did you mean temp"),
        ("[runn]\na = 1", "line 1: [runn]: there is no command 'runn'\nhint: did you mean [run]?"),
        ('top-k = "1"', "line 1: top-k is '1'; a whole number is expected"),
        ("top-k = 1.5", "line 1: top-k is 1.5; a whole number is expected"),
        ("top-k = true", "line 1: top-k is True; a whole number is expected"),
        ("swa-full = 1", "line 1: swa-full is 1; true or false is expected"),
        ("model = 1", "line 1: model is 1; a text in quotes is expected"),
        ("stop = [true]", "line 1: stop is True; a text in quotes is expected, or a list of them"),
        ("config = 'x'", "line 1: config: --config is for the command line alone"),
        ("top-k = = 1", "is no TOML: Invalid value (at line 1, column 9)"),
    ],
)
def test_a_wrong_file_is_told_where(text: str, said: str, config: Path) -> None:
    config.write_text(text)
    message = refused()
    assert said in message
    assert str(config) in message


def test_a_key_of_another_command_may_hold_for_all(config: Path) -> None:
    config.write_text("ctx-size = 512\n[bench]\nn-gen = [1, 2]\n")
    assert values()["top_k"] == 0


def test_the_help_needs_no_file(config: Path) -> None:
    config.write_text("= nonsense")
    done = run_llmkit("fake", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: llmkit fake" in done.stdout


def test_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llmkit"
    folder.mkdir()
    (folder / "config.toml").write_text("top-k = 6")
    (tmp_path / "other.toml").write_text("top-k = 7")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LLMKIT_CONFIG")
    assert values()["top_k"] == 6
    assert values("--config", str(tmp_path / "other.toml"))["top_k"] == 7
    assert "there is no configuration file" in refused("--config", str(tmp_path / "none.toml"))
    (folder / "config.toml").unlink()
    assert values()["top_k"] == 0


def test_what_is_typed_hides_what_it_excludes(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model set in the environment would be in the way of every -hf."""
    monkeypatch.setenv("LLMKIT_MODEL", "m")
    config.write_text("quiet = true")
    assert values("-hf", "a/b:Q4_0")["model"] == "hf:a/b:Q4_0"
    assert values("-mu", "https://x/y.gguf")["model"] == "https://x/y.gguf"
    assert "there are two models, from -m and from -hf" in refused("-m", "x", "-hf", "a/b")
    assert "detail" in run_llmkit("fake", "say", "-v").stderr


def test_verbose_says_where_from(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("temp = 2\n[fake]\nstop = 'x'")
    for name in ("LLMKIT_TOP_K", "LLAMA_ARG_N_GPU_LAYERS", "LLMKIT_TOPK"):
        monkeypatch.setenv(name, "9")
    monkeypatch.setenv("LLMKIT_API_KEY", "hush")
    lines = run_llmkit("fake", "say", "-v", "--swa-full").stderr.splitlines()
    assert f"configuration: {config}" in lines
    assert f"--temp 2: from {config}, line 1: temp" in lines
    assert f"--stop ['x']: from {config}, line 3: [fake] stop" in lines
    assert "--top-k 9: from LLMKIT_TOP_K" in lines
    assert "LLAMA_ARG_N_GPU_LAYERS is set, which means nothing to llmkit" in lines
    assert "LLMKIT_TOPK is set, which is no option of `llmkit fake`" in lines
    assert "--api-key ...: from LLMKIT_API_KEY" in lines
    assert not [line for line in lines if line.startswith("--swa-full")]
