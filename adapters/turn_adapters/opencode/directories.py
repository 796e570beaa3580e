"""Where an OpenCode server keeps its files, when it must not use those of the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

PINNED_VERSION = "1.18.33"
"""The version that all of this was tried with."""


def prepare_directories(data_directory: Path, config: dict[str, Any] | None) -> dict[str, str]:
    """Make the server's directories; the environment that leads it there.

    All are for their owner alone: sessions and a config may hold secrets.
    """
    environment = {}
    for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        directory = data_directory / variable.removeprefix("XDG_").removesuffix("_HOME").lower()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment[variable] = str(directory)
    if config is None:
        return environment
    directory = data_directory / "config" / "opencode"
    # An empty `node_modules` and these two files keep the server from installing its plugin package
    # over the network at its start.
    (directory / "node_modules").mkdir(mode=0o700, parents=True, exist_ok=True)
    plugin = {"dependencies": {"@opencode-ai/plugin": PINNED_VERSION}}
    _write(directory / "package.json", plugin)
    _write(directory / "package-lock.json", {"lockfileVersion": 3, "packages": {"": plugin}})
    _write(directory / "opencode.json", config)
    return environment | {"XDG_CONFIG_HOME": str(directory.parent)}


def _write(path: Path, content: dict[str, Any]) -> None:
    text = msgspec.json.format(msgspec.json.encode(content))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
