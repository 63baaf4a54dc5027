# Sourced by the scripts beside it. `environment EXTRAS` makes a virtual environment with llmkit[EXTRAS] and sets $venv to it.
# PYTHON chooses the interpreter (python3.13, or a path); each choice has its own environment: .venv, .venv-python3.13.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    name="${PYTHON:-python3}"
    say "error: llmkit needs Python 3.11 or newer; $name is $("$name" --version 2>/dev/null || echo not there)"
    say "hint: install one, or name one that is not on PATH: PYTHON=/path/to/python3.12 $0"
    return 1
}

environment() {
    local extras="$1" python stamp
    venv="$root/.venv${PYTHON:+-$(basename "$PYTHON")}"
    stamp="$(cat pyproject.toml setup.py | cksum)"
    if "$venv/bin/python" -c '' 2>/dev/null && [ "$(cat "$venv/installed-$extras" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    python="$(find_python)"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "making $venv with $("$python" --version)"
        if ! "$python" -m venv "$venv"; then
            say "hint: on Debian and Ubuntu, venv is in the package python3-venv"
            return 1
        fi
    fi
    say "installing llmkit${extras:+[$extras]} into $venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable ".${extras:+[$extras]}" >&2
    # What any extras need, plain llmkit has too.
    printf '%s\n' "$stamp" | tee "$venv/installed-$extras" >"$venv/installed-"
}
