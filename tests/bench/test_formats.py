"""llama-bench's formats, written from a record made by hand."""

import csv
import io
import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmkit import __version__
from llmkit.bench.cases import Parameters
from llmkit.bench.formats import FORMATS
from llmkit.bench.record import FIELDS, Record, Value
from tests.paths import SHARED, need_shared

PARAMETERS = Parameters([Path("m.gguf")])


def record(**changes: Any) -> Record:
    samples: dict[type, Value] = {str: "text", int: 7, bool: True, float: 1.5}
    values = {name: samples[kind] for name, kind in FIELDS.items()}
    values |= {"model_type": "llama 256M Q4_1", "model_size": 96576768, "model_n_params": 134515008, "backends": "CPU"}
    values |= {"n_threads": 2, "avg_ts": 492.345678, "stddev_ts": 7.0, **changes}
    return Record("pp512", values, [10, 20], [1e9, 27.8925123], {"isa": "avx2", "compute_share": 0.5})


def written(name: str, records: list[Record], parameters: Parameters = PARAMETERS) -> str:
    printer = FORMATS[name]()
    return printer.header(parameters) + "".join(map(printer.row, records)) + printer.footer()


def test_markdown() -> None:
    assert written("md", [record()]) == (
        "| model                          |       size |     params | backend    | threads |            test |"
        "                  t/s |\n"
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: |"
        " -------------------: |\n"
        "| llama 256M Q4_1                |  92.10 MiB |   134.52 M | CPU        |       2 |           pp512 |"
        "        492.35 ± 7.00 |\n"
        f"\nbuild: {__version__} (0)\n"
    )


def test_large_models_are_shown_in_gib_and_billions() -> None:
    assert "|   1.00 GiB |     1.00 B |" in written("md", [record(model_size=2**30, model_n_params=10**9)])
    assert "| 1024.00 MiB |  1000.00 M |" in written("md", [record(model_size=2**30 - 1, model_n_params=10**9 - 1)])


@pytest.mark.parametrize(
    ("field", "values", "title", "shown"),
    [
        ("n_batch", [512], "| n_batch |", "|     512 |"),
        ("n_ubatch", [128], "| n_ubatch |", "|      128 |"),
        ("type_k", ["f32"], "| type_k |", "|    f32 |"),
        ("type_v", ["f32"], "| type_v |", "|    f32 |"),
        ("flash_attn", ["on"], "|  fa |", "|   1 |"),
    ],
)
def test_a_parameter_that_is_no_default_gets_a_column(field: str, values: list[Any], title: str, shown: str) -> None:
    changes: dict[str, Any] = {field: values}
    shown_value = 1 if field == "flash_attn" else values[0]
    changed = written("md", [record(**{field: shown_value})], replace(PARAMETERS, **changes))
    assert title in changed
    assert shown in changed.splitlines()[2]
    assert title not in written("md", [record()])
    changes = {field: [*getattr(PARAMETERS, field), *values]}
    assert title in written("md", [], replace(PARAMETERS, **changes))


@need_shared
def test_columns_are_those_of_the_description() -> None:
    """The widths that shared/llamacpp.md gives for the table, and the fields it gives for CSV and JSON."""
    text = (SHARED / "llamacpp.md").read_text(encoding="utf-8").partition("## 1.9 llama-bench")[2].partition("\n## ")[0]
    listed = re.search(r"Fields in CSV/JSON order \(measured\): (.*?stddev_ts);", text)
    assert listed
    assert [re.sub(r" \(.*\)", "", name) for name in listed[1].split(", ")] == list(FIELDS)
    columns = re.search(r"md: columns (.*?)\. Test names", text)
    assert columns
    header, rule = written("md", []).splitlines()[:2]
    titles = [title.strip() for title in header.strip("|").split("|")]
    assert titles == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    for title, width in re.findall(r"([\w/]+) \((\d+)(?:, \w+)?\)", columns[1]):
        cell = rule.strip("|").split("|")[titles.index(title)]
        assert len(cell) - 2 == int(width), title
        assert cell.endswith(": ") == (title in ("test", "t/s")), title


def test_csv() -> None:
    text = written("csv", [record(model_filename='a "quoted", name.gguf')])
    header, line = text.splitlines()
    assert header == ",".join(FIELDS)
    assert line.count('"') >= 2 * len(FIELDS)
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["model_filename"] == 'a "quoted", name.gguf'
    assert (row["avg_ts"], row["repack"], row["n_threads"]) == ("492.345678", "1", "2")


def test_json() -> None:
    assert json.loads(written("json", [])) == []
    text = written("json", [record(), record(n_threads=1)])
    first, second = json.loads(text)
    assert list(first) == [*FIELDS, "samples_ns", "samples_ts", "isa", "compute_share"]
    assert first["samples_ns"] == [10, 20]
    assert first["samples_ts"] == [1e9, 27.8925]
    assert (first["repack"], first["avg_ts"], second["n_threads"]) == (True, 492.345678, 1)
    assert text.startswith('[\n  {\n    "build_commit": "text",\n')
    assert text.endswith("\n  }\n]\n")


def test_jsonl() -> None:
    lines = written("jsonl", [record(), record()]).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(written("json", [record(), record()]))


def test_sql_runs() -> None:
    """In a real database, with a name that would end the text, and into a table that is there already."""
    name = "it's'); DROP TABLE llama_bench; --.gguf"
    script = written("sql", [record(model_filename=name), record()])
    with sqlite3.connect(":memory:") as database:
        database.executescript(script)
        database.executescript(script)
        rows = database.execute("SELECT model_filename, avg_ts, repack, n_threads FROM llama_bench").fetchall()
        columns = [row[1:3] for row in database.execute("PRAGMA table_info(llama_bench)")]
    assert rows == [(name, 492.345678, 1, 2), ("text", 492.345678, 1, 2)] * 2
    assert [column for column, _ in columns] == list(FIELDS)
    assert dict(columns)["avg_ts"] == "REAL"
    assert dict(columns)["cpu_info"] == "TEXT"
