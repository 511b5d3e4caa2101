"""Reading conda-lock.yml: exact package files with sha256 for each platform, and no address of a channel.

Addresses begin with a ${VARIABLE}, which conda-lock keeps and which is replaced when packages are fetched. pip's half
of an environment is not in it, because conda-lock writes pip packages with full addresses: that half has a hash lock.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from .errors import ArchwrightError, fail

__all__ = [
    "CondaLock",
    "CondaPackage",
    "module_or_fail",
    "read_conda_lock",
    "read_text",
    "read_virtual_spec",
    "without_secrets",
]

_FILE = re.compile(r"(?P<name>[\w.-]+)-(?P<version>[^-/]+)-(?P<build>[^-/]+)\.(?:conda|tar\.bz2)")


@dataclass(frozen=True)
class CondaPackage:
    """A locked package. `platform` is the one that it is locked for, also when the file is noarch."""

    name: str
    version: str
    build: str
    platform: str
    url: str
    md5: str
    sha256: str
    dependencies: tuple[tuple[str, str], ...]
    category: str


@dataclass(frozen=True)
class CondaLock:
    """What a conda-lock.yml says. `content_hash` is conda-lock's digest of the inputs, by platform."""

    path: Path
    platforms: tuple[str, ...]
    channels: tuple[str, ...]
    content_hash: Mapping[str, str]
    entries: tuple[CondaPackage, ...]

    def on(self, platform: str) -> tuple[CondaPackage, ...]:
        """The packages for `platform`, in the lock's order. Raises AW317 when it is not locked."""
        if platform not in self.platforms:
            raise fail(
                "AW317",
                found=f"{self.path} is for {', '.join(self.platforms)}",
                needed=f"packages for {platform}",
                why="packages of another platform do not run on this machine",
                fix=f"lock it for {platform} too, or use a machine that it is for",
            )
        return tuple(package for package in self.entries if package.platform == platform)

    def packages(self, platform: str) -> dict[str, tuple[str, str, str]]:
        """name -> (version, build, sha256) for `platform`. Raises AW317."""
        return {package.name: (package.version, package.build, package.sha256) for package in self.on(platform)}


def read_conda_lock(path: Path) -> CondaLock:
    """Read and validate a conda-lock.yml of format 1. Raises AW316 for one that is not made yet, AW319, AW320."""
    text = read_text(path)
    if re.search(r"^not_yet_locked_here:", text, re.M):
        target = path.absolute().parent.name
        raise fail(
            "AW316",
            found=f"{path} holds no packages yet",
            needed="a lock that conda-lock solved against real channels",
            why="where the project was made no conda channel could be reached, and hashes are not invented",
            fix=f"with a channel: `archwright env lock {target} --flavour conda` (docs/conda.md); without: "
            f"`archwright env create {target}`, from the hash locks",
        )
    module_or_fail("yaml", "PyYAML")
    import yaml  # type: ignore[import-untyped]

    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _validated(path, content)
    except (yaml.YAMLError, RecursionError) as error:
        raise _unreadable(path, f"not YAML: {' '.join(str(error).split())[:200]}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error


def _validated(path: Path, content: Any) -> CondaLock:
    if content["version"] != 1:
        raise ValueError(f"format {content['version']} of conda-lock, where 1 is known")
    metadata = content["metadata"]
    platforms = tuple(map(_text, metadata["platforms"]))
    entries = tuple(_package(item) for item in content["package"])
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.platform not in platforms:
            raise ValueError(f"{entry.name} is for {entry.platform}, which is not among the platforms")
        if (entry.platform, entry.name) in seen:
            raise ValueError(f"{entry.name} is there twice for {entry.platform}")
        seen.add((entry.platform, entry.name))
    if empty := set(platforms) - {platform for platform, _ in seen}:
        raise ValueError(f"no package for {min(empty)}")
    hashes = {_text(key): _text(value) for key, value in metadata["content_hash"].items()}
    channels = tuple(_text(channel["url"]) for channel in metadata["channels"])
    return CondaLock(path, platforms, channels, hashes, entries)


def _package(item: Any) -> CondaPackage:
    name = _text(item["name"])
    if item["manager"] != "conda":
        raise ValueError(f"{name} is a package of {item['manager']}: only conda's are installed from here")
    url, sha256 = _text(item["url"]), item["hash"].get("sha256")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"{name} has no sha256")
    match = _FILE.fullmatch(PurePosixPath(urlsplit(url).path).name.replace("%21", "!"))
    version, platform = _text(item["version"]), _text(item["platform"])
    if match is None or (match["name"], match["version"]) != (name, version):
        raise ValueError(f"{name} {version} has the address {url}, which is of another package")
    if PurePosixPath(urlsplit(url).path).parent.name not in (platform, "noarch"):
        raise ValueError(f"{name} has the address {url}, which is not of {platform}")
    needs = tuple((_text(key), _text(value)) for key, value in (item.get("dependencies") or {}).items())
    md5 = item["hash"].get("md5") or ""
    return CondaPackage(name, version, match["build"], platform, url, _text(md5), sha256, needs, item["category"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a string belongs")
    return value


def read_virtual_spec(path: Path, platform: str) -> dict[str, str]:
    """name -> version of the virtual packages that a lock was solved for; empty when there is no such file."""
    if not path.is_file():
        return {}
    import yaml

    try:
        found = yaml.safe_load(read_text(path))["subdirs"][platform]["packages"]
        return {_text(name): _text(value).partition(" ")[0] for name, value in found.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def without_secrets(text: str, address: str) -> str:
    """`text`, such as an error's, without the password or the token (`/t/<token>/`) of `address`."""
    token = re.search(r"/t/([^/]+)/", address)
    for secret in (urlsplit(address).password, token and token[1]):
        text = text.replace(secret, "***") if secret else text
    return text


def module_or_fail(module: str, distribution: str) -> None:
    """Raise AW320 unless `module` of `distribution`, which the extra `conda` brings, can be imported."""
    if importlib.util.find_spec(module) is None:
        raise fail(
            "AW320",
            found=f"no {distribution} in {sys.prefix}, and neither conda nor mamba nor micromamba does its work",
            needed="conda-lock and py-rattler: the extra `archwright[conda]`",
            why="conda environments are solved by a conda front end (conda, mamba, micromamba, or ours over "
            "py-rattler), locked by conda-lock, and installed by py-rattler",
            fix="`pip install 'archwright[conda]'`; in a checkout `./bootstrap` installs it. "
            "Without conda channels use the default flavour: `archwright env create TARGET`",
        )


def _unreadable(path: Path, what: str) -> ArchwrightError:
    return fail(
        "AW319",
        found=f"{path}: {what}",
        needed="a lock as `archwright env lock TARGET --flavour conda` writes it",
        why="only exact files with sha256 reproduce an environment",
        fix="`git checkout` the lock, or make it again",
    )
