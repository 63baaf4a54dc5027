"""scripts/bench_batched: the turns, with small programs in place of both engines."""

import json
from pathlib import Path

import pytest

from llmkit.errors import LlmkitError
from scripts.bench.bench_batched import OURS, THEIRS, Turn, show, turn
from tests.scripts.fake_peers import write_program

ROW = {"speed_pp": 100.0, "speed_tg": 50.0}


def program(tmp_path: Path, text: str, code: int = 0) -> list[str]:
    path = tmp_path / "program"
    write_program(path, f"print({text!r})\nraise SystemExit({code})\n")
    return [str(path)]


def test_a_turn_takes_what_the_program_says(tmp_path: Path) -> None:
    found = turn(OURS, program(tmp_path, f"\n{json.dumps(ROW)}\n"), {})
    assert (found.engine, found.speed_pp, found.speed_tg) == (OURS, 100.0, 50.0)


@pytest.mark.parametrize(("text", "code"), [("", 0), (json.dumps(ROW), 1), (json.dumps(ROW | {"speed_tg": None}), 0)])
def test_a_program_without_a_row_is_an_error(tmp_path: Path, text: str, code: int) -> None:
    with pytest.raises(LlmkitError, match="ended with"):
        turn(THEIRS, program(tmp_path, text, code), {})


def test_ratios_are_those_of_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        Turn(OURS, 200.0, 300.0, 0.0), Turn(THEIRS, 100.0, 100.0, 0.0),
        Turn(OURS, 200.0, 310.0, 0.0), Turn(THEIRS, 50.0, 100.0, 0.0),
        Turn(OURS, 200.0, 100.0, None), Turn(THEIRS, 100.0, 10.0, None),
    ]  # fmt: skip
    show(turns, as_json=False)
    assert "3.10 times llama.cpp's S_TG, 2.00 times its S_PP" in capsys.readouterr().out
    show(turns, as_json=True)
    value = json.loads(capsys.readouterr().out)
    assert (value["tg_ratio"], value["pp_ratio"], len(value["turns"])) == (3.1, 2.0, 6)
