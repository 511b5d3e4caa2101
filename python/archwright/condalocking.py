"""Making the conda flavour of a lock: `environment.yml` to `conda-lock.yml`, through the real conda-lock.

conda-lock solves with whatever conda there is: conda, mamba, micromamba, or our own front end over py-rattler.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from .condalock import CondaLock, module_or_fail, read_conda_lock, read_text, without_secrets
from .errors import ArchwrightError, fail
from .process import CommandFailed, clean_environment, run
from .project import replace_text, write_errors

__all__ = ["PLATFORMS", "FrontEnd", "front_end", "lock_conda", "render_explicit"]

#: The platforms of the locks in this project.
PLATFORMS = ("linux-64", "linux-aarch64")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_HEADER = """\
# Made by `archwright env lock {target} --flavour conda` with conda-lock, from environment.yml and virtual-packages.yml.
# Change the inputs and make it again. The addresses of channels are in variables: see docs/conda.md.
"""


@dataclass(frozen=True)
class FrontEnd:
    """What conda-lock calls as its conda. `kind` is conda, mamba, micromamba or archwright."""

    kind: str
    command: tuple[str, ...]

    def executable(self, folder: Path) -> Path:
        """One file that runs `command`; written to `folder` when it has several words."""
        if len(self.command) == 1:
            return Path(self.command[0])
        path = folder / "archwright-conda"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path


def front_end() -> FrontEnd:
    """The first that is there of: $CONDA_EXE, conda, mamba, micromamba on PATH, our own. Raises AW320."""
    for named in (os.environ.get("CONDA_EXE"), "conda", "mamba", "micromamba"):
        if named and (found := shutil.which(named)):
            name = Path(found).name
            return FrontEnd(name if name in ("mamba", "micromamba") else "conda", (found,))
    module_or_fail("rattler", "py-rattler")
    installed = Path(sys.executable).with_name("archwright-conda")
    module = (sys.executable, "-P", "-m", "archwright.condafront")
    return FrontEnd("archwright", (str(installed),) if installed.is_file() else module)


def lock_conda(
    target_folder: Path,
    *,
    platforms: Sequence[str] = PLATFORMS,
    upgrade: bool = False,
    front: FrontEnd | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Path:
    """Lock `environment.yml` in `target_folder` with its `virtual-packages.yml`; return `conda-lock.yml`.

    It is written whole or not at all. A platform whose inputs did not change keeps its packages unless `upgrade`.
    Raises AW315 with the solver's own words, AW320 when there is nothing to solve with.
    """
    module_or_fail("conda_lock", "conda-lock")
    front = front or front_end()
    lock = target_folder / "conda-lock.yml"
    channels = _channels(target_folder / "environment.yml")
    report(f"solving {target_folder.name}/environment.yml for {', '.join(platforms)} with {front.kind}")
    with write_errors(lock), tempfile.TemporaryDirectory(prefix="archwright-conda-") as scratch:
        # conda-lock picks virtual-packages.yml and others up from the working folder, so it gets one of its own.
        folder = Path(scratch)
        for name in ("environment.yml", "virtual-packages.yml"):
            (folder / name).write_text(read_text(target_folder / name), encoding="utf-8")
        if not upgrade and _kept(lock, platforms):
            shutil.copyfile(lock, folder / lock.name)
        environ = {n: v for n, v in clean_environment().items() if n != "CONDA_FLAGS"}
        command: list[str | Path] = ["lock", "--conda", front.executable(folder), "--file", "environment.yml"]
        command += ["--lockfile", lock.name, "--virtual-package-spec", "virtual-packages.yml", "--check-input-hash"]
        command += [word for platform in platforms for word in ("--platform", platform)]
        _conda_lock(command, folder, environ, channels, front)
        text = _without_addresses((folder / lock.name).read_text(encoding="utf-8"), channels)
        text = _HEADER.format(target=target_folder.name) + re.sub(r"\A(?:#.*\n)*", "", text)
        (folder / lock.name).write_text(text, encoding="utf-8")
        count = len(read_conda_lock(folder / lock.name).entries)
        replace_text(lock, text)
    report(f"{count} packages locked in {lock}")
    return lock


def _kept(lock: Path, platforms: Sequence[str]) -> bool:
    """Whether `lock` is a complete lock of exactly `platforms`, whose packages conda-lock may keep."""
    try:
        return set(read_conda_lock(lock).platforms) == set(platforms)
    except ArchwrightError:
        return False


def _channels(environment: Path) -> dict[str, str]:
    """The addresses of the channels that `environment` names, by variable. Raises AW315 for one that is not set."""
    addresses = {}
    for name in dict.fromkeys(_VARIABLE.findall(read_text(environment))):
        value = os.environ.get(name, "").strip().rstrip("/")
        value = f"file://{value}" if value.startswith("/") else value
        if not re.match(r"(?:https?|file)://", value):
            raise fail(
                "AW315",
                found=f"{name} is '{value}'" if value else f"{name} is not set",
                needed="the address of a conda channel (http, https or file), or the path of a local one",
                why="no address is written down in this project: each site has its own mirror; and a channel's short "
                "name would leave the address in the lock",
                fix=f"export {name}=<address of the channel>; docs/conda.md says which channel it stands for",
            )
        addresses[name] = value
    return addresses


def _conda_lock(
    words: Sequence[str | Path],
    folder: Path,
    environ: Mapping[str, str],
    channels: Mapping[str, str],
    front: FrontEnd,
) -> None:
    env = {**environ, **channels}
    try:
        run([sys.executable, "-P", "-m", "conda_lock", *words], env=env, cwd=folder, timeout=3600)
    except CommandFailed as error:
        platform, words_of_solver = _solver_words(error.output)
        for address in channels.values():
            words_of_solver = without_secrets(words_of_solver, address)
        raise fail(
            "AW315",
            found=f"no solution{f' for {platform}' if platform else ''} (asked {front.kind})",
            needed="an environment.yml that the channel can fulfil, and a channel that can be read",
            why="a lock is only written when every platform was solved",
            fix="see the solver's words below: correct environment.yml, virtual-packages.yml or the channel's variable",
            detail=words_of_solver,
        ) from error


def _solver_words(output: str) -> tuple[str, str]:
    """The platform that failed and what the solver said, out of everything that conda-lock printed."""
    match = re.search(r"Could not lock the environment for platform (\S+)\n(.*?)^ {4}Command: ", output, re.S | re.M)
    return (match[1], match[2].strip()) if match else ("", output[-3000:].strip())


def _without_addresses(text: str, channels: Mapping[str, str]) -> str:
    """`text` with channels as variables only. A front end may leave out the credentials of an address."""
    for name, address in channels.items():
        parts = urlsplit(address)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        for known in (address, bare):
            text = text.replace(f"{known}/", f"${{{name}}}/")
    left = next((line.strip() for line in text.splitlines() if "://" in line and not line.startswith("#")), None)
    if left is not None:
        raise fail(
            "AW315",
            found=f"an address in the lock: {left}",
            needed="packages of the channels in environment.yml",
            why="locks hold no address, because each site has its own mirror",
            fix="name the channel by a variable in environment.yml, whose value is the address that the channel "
            "itself gives to its packages",
        )
    return text


def render_explicit(lock: CondaLock | Path, platform: str) -> str:
    """The explicit list of `platform`, by the real conda-lock. It carries md5 only: install_conda checks sha256.

    Addresses are written out in it, so the channels' variables must be set, and it is nothing to commit.
    """
    lock = read_conda_lock(lock) if isinstance(lock, Path) else lock
    lock.on(platform)
    module_or_fail("conda_lock", "conda-lock")
    with tempfile.TemporaryDirectory(prefix="archwright-conda-") as scratch:
        words = ["render", "--kind", "explicit", "--platform", platform, str(lock.path.absolute())]
        try:
            run([sys.executable, "-P", "-m", "conda_lock", *words], env=clean_environment(), cwd=Path(scratch))
        except CommandFailed as error:
            raise fail(
                "AW319",
                found=f"{lock.path}: conda-lock cannot render it",
                needed="a lock as `archwright env lock TARGET --flavour conda` writes it",
                why="an explicit list is made from the lock by conda-lock itself",
                fix="`git checkout` the lock, or make it again",
                detail=error.output[-1000:],
            ) from error
        return (Path(scratch) / f"conda-{platform}.lock").read_text(encoding="utf-8")
