"""The model hub: its reachability, its cache, and downloads.

Without a network, each failed request takes 20 to 50 seconds of retries in the hub's client. So the cache comes first.
Then the hub's host is probed once per process, for at most two seconds. If it does not answer, it is not tried again.
If the user set ``HF_HUB_OFFLINE`` or a proxy, there is no probe.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import SourceError
from ..grammar.foreign import one_line
from .folder import ModelFolder

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
DEFAULT_ENDPOINT = "https://huggingface.co"
#: the same repository under its older and its newer name
ALIASES = {"bert-base-cased": "google-bert/bert-base-cased"}

SMALL = ("config.json", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json")
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
TENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")


class Unreachable(SourceError):
    """The hub did not answer, and its cache does not hold the model or text."""


#: whether each endpoint answered in this process
_answers: dict[str, bool] = {}


def hub_reachable(timeout: float = 2.0) -> bool:
    """Whether the model hub answers, determined once per process in at most ``timeout`` seconds.

    If ``HF_HUB_OFFLINE`` is set, it determines the answer. Behind a proxy the answer is yes until a download fails.
    Otherwise a thread tries a TCP connection to the host of ``HF_ENDPOINT`` (default: huggingface.co); it is a thread,
    because a name look-up can hang. If the answer is no, ``HF_HUB_OFFLINE=1`` is set for libraries that read it later,
    unless the user chose the endpoint.
    """
    for name in OFFLINE:
        if os.environ.get(name):
            return os.environ[name].upper() not in ("1", "ON", "YES", "TRUE")
    endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    if endpoint not in _answers:
        proxied = any(os.environ.get(name) for name in PROXIES)
        _answers[endpoint] = proxied or _connects(endpoint, timeout)
        if not _answers[endpoint] and not os.environ.get("HF_ENDPOINT"):
            os.environ["HF_HUB_OFFLINE"] = "1"
    return _answers[endpoint]


def _connects(endpoint: str, timeout: float) -> bool:
    connected = threading.Event()

    def connect() -> None:
        try:
            parts = urlsplit(endpoint)
            port = parts.port or (80 if parts.scheme == "http" else 443)
            with socket.create_connection((parts.hostname or "", port), timeout=timeout):
                connected.set()
        except (OSError, ValueError, UnicodeError):
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    return connected.is_set()


def cached_folder(name: str, *files: str) -> Path | None:
    """The cached snapshot of hub id ``name`` that holds all ``files``; never touches the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for repository in (name, ALIASES.get(name)):
        if repository is None:
            continue
        try:
            paths = [try_to_load_from_cache(repository, file) for file in files]
        except HFValidationError as error:
            raise SourceError(f"'{name}' is neither a directory nor a hub id") from error
        cached = [Path(path) for path in paths if isinstance(path, str)]
        if cached and len(cached) == len(paths):
            return cached[0].parent
    return None


def cached_models() -> list[str]:
    """The hub ids in the hub's cache with at least a configuration, sorted."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = Path(HF_HUB_CACHE).glob("models--*")
    models = (folder for folder in folders if any(folder.glob("snapshots/*/config.json")))
    return sorted(folder.name.removeprefix("models--").replace("--", "/") for folder in models)


def fetch(name: str, *, weights: bool) -> Path:
    """The local folder of hub id ``name``: the cached one if it is complete, otherwise downloaded.

    With ``weights`` it includes the safetensors files. Only the files that a model needs are fetched, and no code.

    Raises:
        Unreachable: it is not cached, and the hub does not answer.
        SourceError: the hub has no such model or restricts access to it.
    """
    folder = cached_folder(name, "config.json")
    if folder is not None and _complete(folder, weights):
        return folder
    if not hub_reachable():
        raise Unreachable(f"cannot reach the hub for '{name}'")
    patterns = [*SMALL, *SENTENCEPIECE, *(TENSORS if weights else ())]
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError as error:
        raise SourceError(f"'{name}' is gated: accept its terms on the hub and log in, or use --model DIR") from error
    except RepositoryNotFoundError as error:
        raise SourceError(f"the hub has no model '{name}' (or it is private)") from error
    except Exception as error:  # errors of the client and of its HTTP library differ by version
        _answers[os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT] = False  # so this process waits for it only once
        raise Unreachable(f"cannot reach the hub for '{name}' ({type(error).__name__})") from error


def _complete(folder: Path, weights: bool) -> bool:
    """Whether a snapshot, which may be partial, holds the required files."""
    if weights:
        try:
            ModelFolder(folder.name, folder).tensors()
        except SourceError:
            return False
    # A download that was broken off leaves a snapshot with some of its files.
    names = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE)
    return any((folder / name).is_file() for name in names)


def note(line: str) -> None:
    """The default `notify`: one line on stderr."""
    print(f"attnprobe: {one_line(line)}", file=sys.stderr, flush=True)
