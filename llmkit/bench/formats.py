"""llama-bench's output formats: md, csv, json, jsonl, sql.

As there, down to the blanks of the table; but texts in SQL are escaped, and JSON has our own figures at the end.

Owns the texts. What comes first, what for each record and what last is given as strings, so that a caller can show a
record as soon as it is there.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Protocol

from llmkit import __version__
from llmkit.bench.record import FIELDS, Record, Value

if TYPE_CHECKING:
    from llmkit.bench.cases import Parameters

TABLE = "llama_bench"
_SQL_TYPES = {str: "TEXT", bool: "INTEGER", int: "INTEGER", float: "REAL"}

# Width, negative for text that starts at the left; and what the column is called.
_COLUMNS = {
    "model": (-30, "model"),
    "size": (10, "size"),
    "params": (10, "params"),
    "backend": (-10, "backend"),
    "n_threads": (7, "threads"),
    "n_batch": (7, "n_batch"),
    "n_ubatch": (8, "n_ubatch"),
    "type_k": (6, "type_k"),
    "type_v": (6, "type_v"),
    "flash_attn": (3, "fa"),
    "test": (15, "test"),
    "t/s": (20, "t/s"),
}
_DEFAULTS: dict[str, list[Value]] = {
    "n_batch": [2048], "n_ubatch": [512], "type_k": ["f16"], "type_v": ["f16"], "flash_attn": ["auto"],
}  # fmt: skip


class Printer(Protocol):
    """A format. Each method gives text that ends where the next one's begins."""

    def header(self, parameters: Parameters) -> str: ...

    def row(self, record: Record) -> str: ...

    def footer(self) -> str: ...


def _text(value: Value) -> str:
    """As C++'s to_string: 6 decimals, 1 and 0 for true and false."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return str(int(value) if isinstance(value, bool) else value)


class Csv:
    """A line of names, then lines of values, all in quotes."""

    def header(self, parameters: Parameters) -> str:
        return ",".join(FIELDS) + "\n"

    def row(self, record: Record) -> str:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(map(_text, record.values.values()))
        return out.getvalue()

    def footer(self) -> str:
        return ""


def _json_value(value: Value) -> str:
    return _text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _json_pairs(record: Record) -> list[str]:
    """Name and value of each field, of the samples, and of our own figures."""
    pairs = [f'"{name}": {_json_value(value)}' for name, value in record.values.items()]
    pairs.append(f'"samples_ns": [ {", ".join(map(str, record.samples_ns))} ]')
    pairs.append(f'"samples_ts": [ {", ".join(f"{ts:g}" for ts in record.samples_ts)} ]')
    return pairs + [f'"{name}": {json.dumps(value)}' for name, value in record.extra.items()]


class Json:
    """An array of objects; valid only when the footer has come."""

    def __init__(self) -> None:
        self._separator = ""

    def header(self, parameters: Parameters) -> str:
        return "[\n"

    def row(self, record: Record) -> str:
        text = self._separator + "  {\n    " + ",\n    ".join(_json_pairs(record)) + "\n  }"
        self._separator = ",\n"
        return text

    def footer(self) -> str:
        return "\n]\n"


class Jsonl:
    """An object a line."""

    def header(self, parameters: Parameters) -> str:
        return ""

    def row(self, record: Record) -> str:
        return "{" + ", ".join(_json_pairs(record)) + "}\n"

    def footer(self) -> str:
        return ""


class Sql:
    """Statements that make the table, unless it is there, and fill it."""

    def header(self, parameters: Parameters) -> str:
        columns = ",\n".join(f"  {name} {_SQL_TYPES[type]}" for name, type in FIELDS.items())
        return f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n\n"

    def row(self, record: Record) -> str:
        values = ", ".join("'" + _text(value).replace("'", "''") + "'" for value in record.values.values())
        return f"INSERT INTO {TABLE} ({', '.join(FIELDS)}) VALUES ({values});\n"

    def footer(self) -> str:
        return ""


class Markdown:
    """The table for people. A parameter has a column when it was given another value than the default."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def header(self, parameters: Parameters) -> str:
        self._columns = [
            name for name in _COLUMNS if name not in _DEFAULTS or getattr(parameters, name) != _DEFAULTS[name]
        ]
        widths = [_COLUMNS[name][0] for name in self._columns]
        rule = " | ".join("-" * (abs(width) - 1) + (":" if width > 0 else "-") for width in widths)
        return self._line({name: _COLUMNS[name][1] for name in self._columns}) + f"| {rule} |\n"

    def row(self, record: Record) -> str:
        values = record.values
        size, n_params = int(values["model_size"]), int(values["model_n_params"])
        texts = {
            "model": str(values["model_type"]),
            "size": f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB",
            "params": f"{n_params / 1e9:.2f} B" if n_params >= 10**9 else f"{n_params / 1e6:.2f} M",
            "backend": str(values["backends"]),
            "test": record.name,
            "t/s": f"{values['avg_ts']:.2f} ± {values['stddev_ts']:.2f}",
        }
        return self._line({name: texts.get(name) or _text(values[name]) for name in self._columns})

    def footer(self) -> str:
        return f"\nbuild: {__version__} (0)\n"

    def _line(self, texts: dict[str, str]) -> str:
        cells = []
        for name, text in texts.items():
            width = _COLUMNS[name][0]
            cells.append(text.rjust(width) if width > 0 else text.ljust(-width))
        return f"| {' | '.join(cells)} |\n"


FORMATS: dict[str, type[Printer]] = {"md": Markdown, "csv": Csv, "json": Json, "jsonl": Jsonl, "sql": Sql}
