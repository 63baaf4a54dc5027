"""Models of the Hugging Face hub: what `hf:USER/REPO[:QUANT]` means, which files it picks, where the cache keeps them.

The list of a repository's files comes through huggingface_hub, which knows HF_ENDPOINT, HF_TOKEN and the user's login;
the files themselves through http_fetch.py, because huggingface_hub begins anew after a kill. The choice is that of
llama.cpp's -hf: the file whose name holds QUANT before a dot or dash, by default Q4_K_M, else Q8_0, else the
first one. Without a network the same choice is made among the files that were pulled.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from llmkit.errors import DownloadError, ModelNotFoundError, UsageError
from llmkit.files.gguf_split import parse_part_name, part_path
from llmkit.files.http_fetch import Source
from llmkit.files.staged_pull import place_of

PREFIX = "hf:"
DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # in the names of what goes with a model
_ADDRESS = re.compile(r"hf:(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<quant>[\w.-]+))?")


@dataclass(frozen=True)
class HubModel:
    """A repository, and which of its files is meant: "" for the default."""

    repo: str
    quant: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}{f':{self.quant}' if self.quant else ''}"

    @property
    def folder(self) -> str:
        """The name of the repository's folder in models/."""
        return f"hf--{self.repo.replace('/', '--')}"

    def pulled(self) -> list[Path]:
        """The model's files in the cache, the first part first; empty when it was not pulled."""
        place = place_of(self.folder)
        names = [path.relative_to(place).as_posix() for path in place.rglob("*.gguf")]
        names = [name for name in names if not name.startswith(".")]
        try:
            return [place / name for name in choose_files(self, names)]
        except (DownloadError, ModelNotFoundError):
            return []


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it; the SHA-256 is "" for files that are not large."""

    name: str
    n_bytes: int | None
    sha256: str


def is_hub(text: str) -> bool:
    """Whether a model's name is one of the hub."""
    return text.startswith(PREFIX)


def hub_model(address: str) -> HubModel:
    """The meaning of hf:USER/REPO[:QUANT]; UsageError for anything else."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"{address!r} is no model of the hub", "Write hf:USER/REPO or hf:USER/REPO:QUANT.")
    return HubModel(found["repo"], found["quant"] or "")


def pulled_path(model: HubModel) -> Path:
    """The file to open; ModelNotFoundError names the command that fetches it."""
    paths = model.pulled()
    if not paths:
        raise ModelNotFoundError(f"the model {model} has not been fetched yet", f"run `llmkit pull {model}`")
    return paths[0]


def choose_files(model: HubModel, names: Sequence[str]) -> list[str]:
    """Which of a repository's files are the model: one, or all parts of a split one, in order.

    ModelNotFoundError when there is none; DownloadError when parts are missing.
    """
    firsts = [name for name in sorted(names) if _is_model(name)]
    if not firsts:
        raise ModelNotFoundError(
            f"{model.repo} holds no GGUF model", "Look for a repository of the model whose name ends in GGUF."
        )
    fitting: list[str] = [] if model.quant else firsts
    for quant in (model.quant,) if model.quant else reversed(DEFAULT_QUANTS):
        fitting = [name for name in firsts if re.search(re.escape(quant) + "[.-]", name, re.IGNORECASE)] or fitting
    if not fitting:
        shown = ", ".join(PurePosixPath(name).name for name in firsts[:20])
        raise ModelNotFoundError(f"{model.repo} holds no {model.quant}", f"It holds {shown}.")
    part = parse_part_name(Path(fitting[0]))
    if part is None:
        return [fitting[0]]
    parts = [part_path(part.prefix, number, part.count).as_posix() for number in range(1, part.count + 1)]
    missing = set(parts) - set(names)
    if missing:
        raise DownloadError(f"{model.repo} holds {parts[0]}, but not {min(missing)}")
    return parts


def _is_model(name: str) -> bool:
    """A GGUF, whole or the first part, that is no projector, importance matrix or draft head."""
    part, last = parse_part_name(Path(name)), name.rpartition("/")[2]
    if not last.endswith(".gguf") or any(word in last.lower() for word in _NO_MODELS):
        return False
    return part is None or part.number == 1


def hub_sources(model: HubModel) -> list[Source]:
    """What to fetch, in order, all of one revision. DownloadError or ModelNotFoundError say what is wrong."""
    files, revision, endpoint, secret = _list_files(model)
    by_name = {file.name: file for file in files}
    return [
        Source(_url(endpoint, model.repo, revision, name), name, by_name[name].n_bytes, by_name[name].sha256, secret)
        for name in choose_files(model, [file.name for file in files if _is_harmless(file.name)])
    ]


def _is_harmless(name: str) -> bool:
    """A name that stays in its folder, and is not hidden there."""
    parts = name.split("/")
    return not any(part.startswith(".") or not part for part in parts) and not re.search(r"[\\\x00-\x1f]", name)


def _url(endpoint: str, repo: str, revision: str, name: str) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo, name, revision=revision, endpoint=endpoint)


def _list_files(model: HubModel) -> tuple[list[HubFile], str, str, dict[str, str]]:
    """The repository's files, its revision, the hub's address, and the headers that say who we are."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # it is read when huggingface_hub is imported
    import httpx2
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    page = f"{endpoint}/{model.repo}"
    api = HfApi(endpoint=endpoint, library_name="llmkit")
    try:
        info = api.model_info(model.repo, files_metadata=True, timeout=30)
        headers = api._build_hf_headers()
    except GatedRepoError as exc:
        raise DownloadError(
            f"{model.repo} is gated: the hub does not let you in", f"Accept its terms at {page} and set HF_TOKEN."
        ) from exc
    except RepositoryNotFoundError as exc:
        raise DownloadError(
            f"there is no repository {model.repo} at {endpoint}, or it is private",
            "Look at the name again; for a private one set HF_TOKEN.",
        ) from exc
    except HFValidationError as exc:
        raise UsageError(f"{model} is no name of a repository: {exc}") from exc
    except HfHubHTTPError as exc:
        status = f"{exc.response.status_code} {exc.response.reason_phrase}"
        raise DownloadError(f"cannot list {model.repo}: {endpoint} says {status}", _status_hint(exc)) from exc
    except (httpx2.HTTPError, OSError) as exc:
        raise DownloadError(
            f"cannot reach {endpoint}: {exc}", "Check the network, or HF_ENDPOINT; --offline uses what was pulled."
        ) from exc
    files = [
        HubFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else "")
        for sibling in info.siblings or []
    ]
    secret = {name: value for name, value in headers.items() if name.lower() == "authorization"}
    return files, info.sha or "main", endpoint, secret


def _status_hint(exc: Exception) -> str:
    status = getattr(getattr(exc, "response", None), "status_code", 0)
    return "HF_TOKEN is not accepted, or not enough." if status in (401, 403) else "Try again later."
