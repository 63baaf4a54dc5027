"""What `llmkit pull` does with an address: says what it fetches, shows how far it is, prints the path."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from llmkit import report
from llmkit.files.http_fetch import Source, shown_url
from llmkit.files.hub import HubModel, hub_model, hub_sources, pulled_path
from llmkit.files.staged_pull import place_of, pull_staged, remove_pulled
from llmkit.files.url_source import url_folder, url_path, url_sources


def pull_url(url: str, sha256: str, as_json: bool) -> None:
    """Fetch the file at `url`, and the other parts when it is the first of a split model."""
    sources = url_sources(url, sha256)
    if url_path(url).exists():
        report.note(f"{shown_url(url)} is already here; `llmkit pull --rm URL` first fetches it anew")
    else:
        report.note(f"source   {shown_url(url)}")
    show(url, fetch_sources(url_folder(url), sources), sources, as_json)


def remove_url(url: str, as_json: bool) -> None:
    """Delete what was fetched from `url`."""
    place = url_path(url).parent
    n_bytes = remove_pulled(url_folder(url), [place / source.name for source in url_sources(url)])
    show_removed(url, n_bytes, as_json)


def pull_hub(address: str, as_json: bool) -> None:
    """Fetch a model of the hub, or see that what is here is still what the hub has; with HF_HUB_OFFLINE only look."""
    model = hub_model(address)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        report.note("HF_HUB_OFFLINE is set: the hub is not asked")
        pulled_path(model)
        show(address, model.pulled()[0], _local_sources(model), as_json)
        return
    sources = hub_sources(model)
    size = sum(source.n_bytes or 0 for source in sources)
    report.note(f"source   {model.repo}: {sources[0].name}{f' and {len(sources) - 1} more' * (len(sources) > 1)}")
    report.note(f"size     {size / 1e6:.1f} MB")
    show(address, fetch_sources(model.folder, sources), sources, as_json)


def remove_hub(address: str, as_json: bool) -> None:
    """Delete what was fetched; without QUANT the file that it stands for."""
    model = hub_model(address)
    show_removed(address, remove_pulled(model.folder, model.pulled()), as_json)


def _local_sources(model: HubModel) -> list[Source]:
    place = place_of(model.folder)
    return [Source("", path.relative_to(place).as_posix()) for path in model.pulled()]


def fetch_sources(folder: str, sources: Sequence[Source]) -> Path:
    """Fetch the sources with a bar for each; `kill` ends it as Ctrl-C does, and both keep what came."""
    with _Bars(len(sources)) as bars:
        return pull_staged(
            folder, sources, bars.watch, lambda: report.note("waiting for another llmkit that is pulling this model")
        )


def show(name: str, path: Path, sources: Sequence[Source], as_json: bool) -> None:
    """The path, or what --json says about it."""
    if not as_json:
        report.result(str(path))
        return
    root = path.parents[sources[0].name.count("/")]
    files = [root / source.name for source in sources]
    size = sum(file.stat().st_size for file in files)
    report.result_json({"name": name, "path": str(path), "files": [str(file) for file in files], "size": size})


def show_removed(name: str, n_bytes: int, as_json: bool) -> None:
    """What was removed."""
    if as_json:
        report.result_json({"name": name, "path": None, "freed": n_bytes})
    else:
        report.note(f"removed {shown_url(name)}, {n_bytes / 1e6:.1f} MB")


class _Bars(ExitStack):
    """One progress bar after the other: a file that begins again, or the next one, has fewer bytes than the last."""

    def __init__(self, n_files: int) -> None:
        super().__init__()
        self._n_files, self._done = n_files, 0
        self._bar: report.Progress | None = None

    def watch(self, done: int, total: int | None) -> None:
        """The current file has `done` bytes of `total`."""
        if self._bar is None or done < self._done:
            self.close()
            label = "fetching" if self._n_files == 1 else f"fetching, of {self._n_files} files"
            self._bar, self._done = self.enter_context(report.progress(label, total or 0)), 0
        self._bar.update(done - self._done)
        self._done = done
