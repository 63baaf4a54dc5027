"""How what a state file says of itself is shown: for people as rows, for programs as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmkit.engine.state.info import StateInfo


def info_json(info: "StateInfo") -> dict[str, Any]:
    """All of it but the positions, which are 0, 1, 2 ... nearly always."""
    return {
        "path": info.path,
        "format_version": info.format_version,
        "model": info.model,
        "arch": info.arch,
        "quantization": info.quantization,
        "fingerprint": info.fingerprint,
        "numerics_id": info.numerics_id,
        "type_k": info.type_k,
        "type_v": info.type_v,
        "windows": list(info.windows),
        "n_ctx": info.n_ctx,
        "n_bytes": info.n_bytes,
        "kv_bytes": info.kv_bytes,
        "compressed": info.compressed,
        "metadata": dict(info.metadata),
        "sequences": [
            {
                "id": seq.id,
                "n_tokens": seq.n_tokens,
                "pos_max": seq.pos_max,
                "first_point": seq.first_point,
                "tokens": seq.tokens.tolist(),
            }
            for seq in info.sequences
        ],
    }


def plain(text: object) -> str:
    """On one line, and nothing that a terminal would obey: a file says what it likes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def info_rows(info: "StateInfo") -> list[tuple[str, str]]:
    """The same, a line each."""
    windows = ", ".join(str(window) if window else "all tokens" for window in info.windows)
    form = f"version {info.format_version}" + (", compressed: loading copies it" if info.compressed else "")
    rows = [
        ("file", f"{info.n_bytes / 1e6:.1f} MB, {form}"),
        ("model", f"{info.model} ({info.arch}, {info.quantization})"),
        ("fingerprint", info.fingerprint),
        ("numerics", info.numerics_id),
        ("keys, values", f"{info.type_k}, {info.type_v}"),
        ("memory", f"{windows}; saved from a context of {info.n_ctx} tokens"),
    ]
    for seq in info.sequences:
        back = "anywhere" if seq.first_point <= 1 else f"{seq.first_point} tokens or more, or none"
        rows.append((f"sequence {seq.id}", f"{seq.n_tokens} tokens, last position {seq.pos_max}; can be cut to {back}"))
    rows += [(f"meta {key}", text) for key, text in sorted(info.metadata.items())]
    return [(plain(name), plain(text)) for name, text in rows]
