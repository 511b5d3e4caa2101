"""What the user configured for package indexes: pip's settings and uv's, read through the tools themselves.

No index is written down anywhere in this project; with nothing configured the libraries use their own default.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Flavour", "IndexSettings", "Installer", "index_settings"]


class Installer(StrEnum):
    """What installs the locked packages."""

    UV = "uv"
    PIP = "pip"


class Flavour(StrEnum):
    """Where compilers and CUDA come from: hash-locked packages (and this machine's GCC), or a conda lock."""

    PACKAGES = "packages"
    CONDA = "conda"


@dataclass(frozen=True)
class IndexSettings:
    """Index and link locations in the order in which they are searched. Empty: the libraries' default index."""

    index: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    certificate: str | None = None
    no_index: bool = False
    proxy: str | None = None

    def uv_environment(self) -> dict[str, str]:
        """Variables that hand pip's index on to uv, which does not read pip's configuration.

        uv's own variables and files win; `extra` is left out because uv and pip rank several indexes differently
        (every file is pinned by hash, so one complete index is enough).
        """
        result: dict[str, str] = {}
        if self.index and not os.environ.get("UV_DEFAULT_INDEX") and not os.environ.get("UV_INDEX_URL"):
            result["UV_DEFAULT_INDEX"] = self.index
        return result


def index_settings() -> IndexSettings:
    """Read `pip config list` (files and PIP_* variables) and uv's UV_* variables."""
    values = _pip_settings()
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(variable):
            values["index-url"] = os.environ[variable]
    extra = [*_words(values.get("extra-index-url")), *_words(os.environ.get("UV_EXTRA_INDEX_URL"))]
    return IndexSettings(
        index=values.get("index-url"),
        extra=tuple(dict.fromkeys(extra)),
        find_links=tuple(_words(values.get("find-links"))),
        trusted_hosts=tuple(_words(values.get("trusted-host"))),
        certificate=values.get("cert"),
        no_index=values.get("no-index", "").lower() in ("1", "true", "yes", "on"),
        proxy=values.get("proxy"),
    )


def _words(value: str | None) -> list[str]:
    return (value or "").split()


def _pip_settings() -> dict[str, str]:
    """Settings by name, later ones winning: global, then `download`, then PIP_* variables, as pip itself ranks them."""

    run = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    ranked: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in run.stdout.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.partition(".")
        if section in ranked and quoted:
            # pip prints Python literals: line breaks inside a value are spelt \n
            ranked[section][name] = " ".join(shlex.split(quoted)).replace("\\n", " ")
    return ranked["global"] | ranked["download"] | ranked[":env:"]
