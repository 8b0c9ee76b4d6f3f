"""The installation: versions, devices, threads, and the available sources."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .. import __version__
from ..inputs import cached_models, describe_defaults, hub_reachable, packaged_weights
from ..inputs.packaged import PACKAGES as PACKAGED
from ..machine import processor

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "scipy",
    "matplotlib",
    "rich",
    "click",
    "pyyaml",
)


@cache  # the metadata of twelve packages take 50 ms to parse, and a run asks three times
def versions() -> Mapping[str, str]:
    """The versions of attnprobe, Python, the platform and the packages that can change a number."""
    installed = {"attnprobe": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def git_commit() -> str | None:
    """The commit of the checkout of this package, with ``-dirty`` if files differ; None without a checkout."""
    # an installed package has no checkout, and may lie in that of another project
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: str) -> str:
    """The device with its name, such as ``cuda:0 (NVIDIA H200)``."""
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device


def threads() -> int:
    """The number of threads of torch's CPU kernels."""
    return torch.get_num_threads()


def machine(device: str) -> dict[str, str | int]:
    """The facts of a machine that change times. Times of machines with different facts cannot be compared."""
    facts = {"device": device_name(device), "cpu": processor.name(), "cores": os.cpu_count() or 0, "threads": threads()}
    return {**facts, "system": f"{platform.system()} {platform.machine()}"}


def examine() -> dict[str, list[str]]:
    """The lines of ``attnprobe doctor``, by heading."""
    devices = [f"cpu, {threads()} threads of {os.cpu_count()} cores"]
    devices += [device_name(f"cuda:{index}") for index in range(torch.cuda.device_count())]
    commit = git_commit()
    return {
        "versions": [f"{name} {number}" for name, number in versions().items()]
        + ([f"git commit {commit}"] if commit else []),
        "devices": devices,
        "hub": ["reachable" if hub_reachable() else "not reachable"],
        "hub's cache": cached_models() or ["no model"],
        "packaged": [_state(name) for name in PACKAGED],
        "defaults": describe_defaults(),
    }


def _state(name: str) -> str:
    """A line about packaged weights."""
    packaged = packaged_weights(name)
    if not packaged["installed"]:
        return f"{name} is not installed: {PACKAGED[name].install}"
    state = "sha256 as published" if packaged["sha256_ok"] else "sha256 WRONG: refused"
    return f"{name} at {packaged['path']}, {state}"
