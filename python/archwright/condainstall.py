"""Installing locked conda packages: every file is hashed by us and looked through before any of it is unpacked.

py-rattler checks hashes of what it downloads, but not of local files; and a hash says only that a file is the one that
was locked. So: fetch into the cache, hash, refuse what would be written outside the prefix, then link. A conda prefix
cannot be moved, so it is made where it stays, and removed when anything goes wrong.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx2

from .condalink import LinkRequest, LinkResult
from .condalock import CondaLock, module_or_fail, read_conda_lock, read_virtual_spec, without_secrets
from .condaplatform import check_machine, native_platform
from .errors import ArchwrightError, fail
from .process import CommandFailed, clean_environment, run
from .project import cache_dir, require_space, write_errors

__all__ = ["PackageFile", "install_conda", "install_explicit"]

_EXPLICIT = re.compile(
    r"(?P<url>\S+?/[^/\s]+\.(?:conda|tar\.bz2))#(?:(?:md5:)?(?P<md5>[0-9a-f]{32})|(?:sha256:)?(?P<sha256>[0-9a-f]{64}))"
)
_DOWNLOADS = 8  # at once
_PIECE = 1 << 20


@dataclass(frozen=True)
class PackageFile:
    """A package file: its address, perhaps with ${VARIABLES}, and the hash that it must have."""

    url: str
    algorithm: str
    digest: str

    @property
    def name(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name


def install_conda(
    lock: CondaLock | Path,
    prefix: Path,
    *,
    platform: str | None = None,
    offline: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> int:
    """Install what `lock` has for `platform` (default: this machine) as the new prefix; return how many packages.

    `offline` takes package files from the cache and from file:// channels only. Link scripts of packages are not run.
    Raises AW202, AW203 and AW333 before anything is unpacked; AW207, AW306, AW308, AW316 to AW320. Nothing half-made is
    left.
    """
    lock = read_conda_lock(lock) if isinstance(lock, Path) else lock
    platform = platform or native_platform()
    packages = lock.on(platform)
    module_or_fail("rattler", "py-rattler")
    needs = [(package.name, name, spec) for package in packages for name, spec in package.dependencies]
    machines = lock.path.with_name("virtual-packages.yml")
    assumed = read_virtual_spec(machines, platform)
    needs += [(machines.name, name, f">={assumed[name]}") for name in ("__glibc", "__cuda") if name in assumed]
    check_machine(needs, platform, report)
    files = [PackageFile(package.url, "sha256", package.sha256) for package in packages]
    _install(files, prefix, platform, offline, report)
    return len(files)


def install_explicit(text: str, prefix: Path, *, platform: str, offline: bool = False) -> int:
    """Install an explicit list: one `address#md5` or `address#sha256:digest` a line. Raises as `install_conda` does."""
    files = []
    for line in text.splitlines():
        if line.startswith("#") or line.strip() in ("", "@EXPLICIT"):
            continue
        match = _EXPLICIT.fullmatch(line.strip())
        if match is None:
            raise fail(
                "AW319",
                found=f"'{line.strip()[:80]}' in the explicit list",
                needed="an address, `#` and the md5 or sha256 of the file",
                why="a package without a hash could be anything",
                fix="`conda-lock render --kind explicit` makes such a list",
            )
        algorithm = "md5" if match["md5"] else "sha256"
        files.append(PackageFile(match["url"], algorithm, match[algorithm]))
    _install(files, prefix, platform, offline, lambda message: None)
    return len(files)


def _install(
    files: Sequence[PackageFile], prefix: Path, platform: str, offline: bool, report: Callable[[str], None]
) -> None:
    module_or_fail("rattler", "py-rattler")
    prefix = prefix.absolute()
    if prefix.exists() and (not prefix.is_dir() or any(prefix.iterdir())):
        raise fail(
            "AW306",
            found=f"{prefix} exists",
            needed="a prefix that does not exist, or an empty folder",
            why="what is in it already could shadow or overwrite what the lock says",
            fix="remove it, or name another",
        )
    report(f"fetching and hashing {len(files)} conda packages")
    with write_errors(prefix):
        paths = _fetch_all(files, offline)
        report(f"looking through them, and linking into {prefix}")
        _link_all(paths, prefix, platform, report)


def _fetch_all(files: Sequence[PackageFile], offline: bool) -> list[Path]:
    stop = threading.Event()
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        futures = [pool.submit(_fetch, file, offline, stop) for file in files]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(file: PackageFile, offline: bool, stop: threading.Event) -> Path:
    """The file in the cache, with the hash that it must have; hashed also when it was there. AW207, AW306 and AW333."""
    path = cache_dir() / "conda" / "packages" / file.digest / file.name
    if path.is_file() and _digest(path, file.algorithm) == file.digest:
        return path
    url = expand(file.url)
    if not url.startswith("file://") and offline:
        raise fail(
            "AW207",
            found=f"no {file.name} in {path.parents[1]}",
            needed=f"this package, {file.algorithm} {file.digest}",
            why="--offline forbids the network",
            fix="install once with the network, or point the channel at a local copy (file://)",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        _download(url, partial, stop)
        found = _digest(partial, file.algorithm)
        if found != file.digest:
            raise fail(
                "AW333",
                found=f"{file.name} with {file.algorithm} {found}",
                needed=f"{file.algorithm} {file.digest}, as locked",
                why="it is not the file that was locked: damaged on its way, replaced in the channel, or tampered with",
                fix="try again; if it stays so, ask whoever runs the channel; lock again only if you trust the file",
            )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _download(url: str, target: Path, stop: threading.Event) -> None:
    try:
        with _opened(url) as chunks, target.open("wb") as file:
            for chunk in chunks:
                if stop.is_set():
                    return
                file.write(chunk)
    except (httpx2.HTTPError, httpx2.InvalidURL, FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise fail(
            "AW306",
            found=f"{PurePosixPath(urlsplit(url).path).name} cannot be fetched",
            needed="every package file of the lock",
            why="a package that is missing makes another environment than the locked one",
            fix="check that the channel's variable names the channel that was locked, and that it is reachable",
            detail=without_secrets(str(error), url),
        ) from error


@contextmanager
def _opened(url: str) -> Iterator[Iterator[bytes]]:
    """The content of a file:// or http(s) address, in pieces."""
    if url.startswith("file://"):
        with Path(unquote(urlsplit(url).path)).open("rb") as file:
            yield iter(lambda: file.read(_PIECE), b"")
    else:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=60) as response:
            response.raise_for_status()
            yield response.iter_bytes(_PIECE)


def expand(url: str) -> str:
    """`url` with its ${VARIABLES} replaced. Raises AW306 for one that is not set."""
    missing = [name for name in re.findall(r"\$\{(\w+)\}", url) if not os.environ.get(name)]
    if missing:
        raise fail(
            "AW306",
            found=f"{missing[0]} is not set",
            needed="the address of the channel that was locked, or of a copy of it",
            why="locks hold no address: each site has its own mirror",
            fix=f"export {missing[0]}=<address of the channel> (docs/conda.md says which)",
        )
    return re.sub(r"\$\{(\w+)\}", lambda match: os.environ[match[1]].rstrip("/"), url)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return file_digest(file, algorithm).hexdigest()


def _link_all(paths: Sequence[Path], prefix: Path, platform: str, report: Callable[[str], None]) -> None:
    """Look through, check and link in a process of its own; remove the prefix unless all of it is there."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}.", dir=prefix.parent) as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "result.json"
        request = LinkRequest(tuple(map(str, paths)), str(prefix), platform, f"{scratch}/unpacked")
        asked.write_text(json.dumps(asdict(request)), encoding="utf-8")
        complete = False
        try:
            run([sys.executable, "-P", "-m", "archwright.condalink", asked, answer], env=clean_environment())
            result = LinkResult(**json.loads(answer.read_text(encoding="utf-8")))
            for note in result.notes:
                report(note)
            if result.error:
                raise ArchwrightError(**result.error)
            if result.trouble:
                raise _unlinked(prefix, result.trouble)
            complete = True
        except CommandFailed as error:
            raise _unlinked(prefix, error.output) from error
        finally:
            if not complete:
                shutil.rmtree(prefix, ignore_errors=True)


def _unlinked(prefix: Path, words: str) -> ArchwrightError:
    if "No space left" in words or "os error 28" in words:
        require_space(prefix, 1 << 62, f"installing {prefix.name}")
    return fail(
        "AW306",
        found=f"linking conda packages into {prefix} failed",
        needed="a folder that can be written, on a file system with links",
        why="the packages have the locked hashes, so the reason is here",
        fix="see below; nothing was left behind",
        detail=words[-3000:],
    )
