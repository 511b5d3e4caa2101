"""What an environment holds, written down when it is made, and compared with that and with its locks later.

Who vouches for whom: a lock for the packages, each package's RECORD for its files, and `contents.json` for the RECORDs
and for everything that no RECORD lists: what made the virtual environment, and the toolkit view.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from .drift import Drift, DriftKind, drift_error, sort_drifts
from .errors import ArchwrightError, fail
from .files import hash_files
from .lockfile import packages_for
from .prefix import Entry, Package, Prefix, read_prefix
from .project import replace_text

__all__ = [
    "Drift",
    "DriftKind",
    "check_contents",
    "damaged_packages",
    "drift_error",
    "record_contents",
    "verify_halves",
]

Report = Callable[[str], None]

_SCHEMA = 1
_VIEW = "cuda"  # the toolkit view: links and stubs of ours, in no package


def record_contents(folder: Path, halves: Sequence[str]) -> Path:
    """Write `<folder>/contents.json`: what each half (and the toolkit view, if there is one) holds now.

    Hashes the lists of the packages and what they do not list; `verify_halves` is for the rest.
    """
    with _readable(folder):
        prefixes = [read_prefix(folder / name) for name in halves]
        prefixes += [_view(folder)] if (folder / _VIEW).is_dir() else []
        digests = _hash([prefix.root / path for prefix in prefixes for path in _to_record(prefix)])
        trees = {prefix.root.name: _describe(prefix, digests) for prefix in prefixes}
    path = folder / "contents.json"
    replace_text(path, json.dumps({"schema": _SCHEMA, "trees": trees}, indent=1, sort_keys=True))
    return path


def verify_halves(folder: Path, halves: Sequence[str], *, report: Report = lambda message: None) -> tuple[Drift, ...]:
    """Compare every file of every package with the hash in the package's RECORD. Raises AW307 for half a prefix."""
    with _readable(folder):
        return sort_drifts(_compare_files([_half(folder, name) for name in halves], report))


def check_contents(
    folder: Path,
    locks: Mapping[str, Path],
    halves: Sequence[str] | None = None,
    *,
    report: Report = lambda message: None,
) -> tuple[Drift, ...]:
    """Compare the environment in `folder` with its locks (by half) and with what it held when it was made.

    Raises AW307 when it is not complete, or not readable, so that nothing can be said.
    """
    with _readable(folder):
        python, recorded = _load(folder, halves := halves or tuple(locks))
        prefixes = [_half(folder, name) for name in halves]
        prefixes += [_view(folder)] if _VIEW in recorded else []
        _require_links(folder, prefixes, recorded)
        drifts: list[Drift] = []
        for name, prefix in zip(halves, prefixes, strict=False):
            drifts += _compare_packages(prefix, _locked(locks[name], python), recorded[name])
        known = {(drift.half, drift.package) for drift in drifts}
        drifts += _compare_files(prefixes, report)
        for prefix in prefixes:
            drifts += _compare_recorded(prefix, recorded[prefix.root.name], known)
        return sort_drifts(drifts)


def damaged_packages(folder: Path, locks: Mapping[str, Path]) -> tuple[str, ...]:
    """Names of the packages that drifted, as far as they can be told: for an environment that is about to be remade."""
    try:
        drifts = check_contents(folder, locks)
    except ArchwrightError:
        drifts = ()
        for half in locks:
            with contextlib.suppress(ArchwrightError):
                drifts += verify_halves(folder, (half,))
    return tuple(sorted({drift.package for drift in drifts if drift.package}))


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn what keeps an environment from being read into AW307."""
    try:
        yield
    except OSError as error:
        raise _incomplete(f"{os.fsdecode(error.filename or folder)}: {error.strerror}") from error


def _incomplete(what: str) -> ArchwrightError:
    return fail(
        "AW307",
        found=what,
        needed="a complete environment that can be read",
        why="what is not there cannot be compared",
        fix="make it anew: `archwright env create TARGET --again`",
    )


def _view(folder: Path) -> Prefix:
    return replace(read_prefix(folder / _VIEW), packages=())


def _half(folder: Path, name: str) -> Prefix:
    prefix = read_prefix(folder / name)
    if not prefix.packages:
        raise _incomplete(f"{prefix.root} has no package in it")
    return prefix


def _hash(paths: Sequence[Path], report: Report = lambda message: None) -> dict[Path, str]:
    digests = hash_files(paths, report)
    for path, digest in digests.items():
        if len(digest) != 64:
            raise _incomplete(f"{path} {digest}")
    return digests


# ------------------------------------------------------------------------------- what contents.json says of a prefix
@dataclass(frozen=True)
class _Recorded:
    """One prefix as it was. `packages` is by the path of RECORD, `files` by path."""

    packages: dict[str, _RecordedPackage]
    files: dict[str, _RecordedFile]


@dataclass(frozen=True)
class _RecordedPackage:
    name: str
    version: str
    sha256: str
    executable: list[str]


@dataclass(frozen=True)
class _RecordedFile:
    """A file that no RECORD vouches for; `link` instead of a hash for a link."""

    sha256: str = ""
    link: str | None = None
    executable: bool = False


def _claimed(prefix: Prefix) -> set[str]:
    return {path for package in prefix.packages for path in package.hashes}


def _to_record(prefix: Prefix) -> list[str]:
    """What has to be hashed for contents.json."""
    claimed = _claimed(prefix)
    return [path for path, entry in prefix.entries.items() if entry.regular and path not in claimed]


def _describe(prefix: Prefix, digests: Mapping[Path, str]) -> dict[str, Any]:
    def described(path: str, entry: Entry) -> _RecordedFile:
        return _RecordedFile(digests.get(prefix.root / path, ""), entry.link, entry.executable)

    claimed = _claimed(prefix)
    records = {package.record for package in prefix.packages}
    packages = {
        package.record: _RecordedPackage(
            package.name,
            package.version,
            digests.get(prefix.root / package.record, ""),
            sorted(
                path
                for path in (*package.hashes, package.record)
                if (entry := prefix.entries.get(path)) and entry.executable
            ),
        )
        for package in prefix.packages
    }
    files = {p: described(p, entry) for p, entry in prefix.entries.items() if p not in claimed and p not in records}
    return asdict(_Recorded(packages, files))


def _load(folder: Path, halves: Sequence[str]) -> tuple[str, dict[str, _Recorded]]:
    """The Python's version of env.json, and contents.json. AW307 when one is damaged or lacks a half."""
    path = folder / "env.json"
    try:
        python = str(json.loads(path.read_text(encoding="utf-8"))["python"])
        path = folder / "contents.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']} instead of {_SCHEMA}")
        recorded = {
            name: _Recorded(
                {path: _RecordedPackage(**item) for path, item in tree["packages"].items()},
                {path: _RecordedFile(**item) for path, item in tree["files"].items()},
            )
            for name, tree in data["trees"].items()
        }
        return python, {name: recorded[name] for name in (*halves, *({_VIEW} & set(recorded)))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _incomplete(f"{path} is damaged ({type(error).__name__}: {error})") from error


# -------------------------------------------------------------------------------------------------- the comparisons
def _locked(lock: Path, python: str) -> dict[str, Version]:
    """What the lock asks for with this Python, on this machine."""
    return {name: package.version for name, package in packages_for(lock, python=python).items()}


def _compare_packages(prefix: Prefix, locked: Mapping[str, Version], recorded: _Recorded) -> Iterator[Drift]:
    half = prefix.root.name
    found: dict[str, list[Package]] = {}
    for package in prefix.packages:
        found.setdefault(package.name, []).append(package)
    others = set()
    for name, version in locked.items():
        if name not in found:
            yield Drift(half, DriftKind.MISSING_PACKAGE, name, "", "", str(version))
        elif not any(_same_version(package.version, version) for package in found[name]):
            others.add(name)
            yield Drift(half, DriftKind.OTHER_VERSION, name, "", found[name][0].version, str(version))
    for package in prefix.packages:
        # what was there when the environment was made is vouched for; `python -m venv` puts a pip of its own there
        vouched = package.record in recorded.packages and (package.name in locked or package.name == "pip")
        if not vouched and package.name not in others:
            yield Drift(half, DriftKind.EXTRA_PACKAGE, package.name, "", package.version, "")


def _same_version(installed: str, locked: Version) -> bool:
    """As `==` in a requirement: a local part (`+cu130`) counts only where the lock has one."""
    try:
        version = Version(installed)
    except InvalidVersion:
        return False
    return locked in (version, Version(version.public))


def _compare_files(prefixes: Sequence[Prefix], report: Report) -> list[Drift]:
    """Every file that a RECORD lists, against the hash that it gives."""
    drifts: list[Drift] = []
    claims: dict[Path, list[tuple[str, str]]] = {}
    owners: dict[Path, tuple[str, str, str]] = {}
    for prefix in prefixes:
        for package in prefix.packages:
            drifts += _compare_list(prefix, package)
            for path, claim in package.hashes.items():
                if (entry := prefix.entries.get(path)) and entry.regular:
                    # two packages may list one file: whichever was installed last wins
                    claims.setdefault(prefix.root / path, []).append(claim)
                    owners[prefix.root / path] = (prefix.root.name, package.name, path)
    digests = _hash(list(claims), report)
    for file, allowed in claims.items():
        if not any(_digest(file, algorithm, digests) == digest for algorithm, digest in allowed):
            half, name, path = owners[file]
            drifts.append(Drift(half, DriftKind.MODIFIED_FILE, name, path, digests[file], allowed[-1][1]))
    return drifts


def _digest(file: Path, algorithm: str, digests: Mapping[Path, str]) -> str:
    if algorithm == "sha256":
        return digests[file]
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def _compare_list(prefix: Prefix, package: Package) -> Iterator[Drift]:
    """What can be said of a package's files without reading them."""
    half, name = prefix.root.name, package.name
    record = prefix.entries.get(package.record)
    if record is None:
        yield Drift(half, DriftKind.MISSING_FILE, name, package.record, "", "a list of its files")
    elif not record.regular:
        yield Drift(half, DriftKind.CHANGED_LINK, name, package.record, _described(record), "a file")
    elif package.problem:
        yield Drift(half, DriftKind.MODIFIED_FILE, name, package.record, package.problem, "a list of its files")
    for path, (_, digest) in package.hashes.items():
        entry = prefix.entries.get(path)
        if entry is None:
            yield Drift(half, DriftKind.MISSING_FILE, name, path, "", digest)
        elif not entry.regular:
            yield Drift(half, DriftKind.CHANGED_LINK, name, path, _described(entry), "a file")


def _require_links(folder: Path, prefixes: Sequence[Prefix], recorded: Mapping[str, _Recorded]) -> None:
    """AW307 for a link out of the environment that is as it was and leads nowhere: its Python was removed.

    One that leads inside the environment lacks a file that is named as missing.
    """
    for prefix in prefixes:
        for path, entry in prefix.entries.items():
            before = recorded[prefix.root.name].files.get(path)
            if entry.link is None or before is None or before.link != entry.link or (prefix.root / path).exists():
                continue
            target = Path(os.path.normpath((prefix.root / path).parent / entry.link))
            if not target.is_relative_to(folder):
                raise _incomplete(f"{prefix.root / path} leads to {target}, which is not there")


def _compare_recorded(prefix: Prefix, recorded: _Recorded, known: set[tuple[str, str]]) -> Iterator[Drift]:
    """What no RECORD vouches for, against contents.json. No more is said of packages that are `known` to differ."""
    half = prefix.root.name
    packages = {package.record: package for package in prefix.packages}
    owners = {path: package.name for package in prefix.packages for path in package.unhashed}
    files = {path: (owners.get(path, ""), file) for path, file in recorded.files.items()}
    for path, item in recorded.packages.items():
        files[path] = (item.name, _RecordedFile(item.sha256, executable=path in item.executable))
    files = {path: item for path, item in files.items() if (half, item[0]) not in known}
    readable = [prefix.root / path for path in files if path in prefix.entries and prefix.entries[path].regular]
    digests = _hash(readable)
    for path, (name, file) in files.items():
        yield from _compare_one(half, name, path, prefix.entries.get(path), digests.get(prefix.root / path, ""), file)
    for path, item in recorded.packages.items():
        if path in packages and (half, item.name) not in known:
            yield from _compare_modes(prefix, packages[path], set(item.executable))
    claimed = {path for package in prefix.packages for path in (*package.hashes, package.record)}
    yield from _extra(prefix, claimed | set(recorded.files) | set(recorded.packages))


def _compare_one(
    half: str, name: str, path: str, entry: Entry | None, digest: str, file: _RecordedFile
) -> Iterator[Drift]:
    if entry is None:
        expected = file.sha256 or f"a link to {file.link}"
        yield Drift(half, DriftKind.MISSING_FILE, name, path, "", expected)
    elif entry.link != file.link or (file.link is None and not entry.regular):
        expected = "a file" if file.link is None else f"a link to {file.link}"
        yield Drift(half, DriftKind.CHANGED_LINK, name, path, _described(entry), expected)
    elif digest != file.sha256:
        yield Drift(half, DriftKind.MODIFIED_FILE, name, path, digest, file.sha256)
    elif entry.executable != file.executable:
        yield Drift(half, DriftKind.CHANGED_MODE, name, path, _mode(entry.executable), _mode(file.executable))


def _compare_modes(prefix: Prefix, package: Package, executable: set[str]) -> Iterator[Drift]:
    for path in package.hashes:
        entry = prefix.entries.get(path)
        if entry is not None and entry.regular and entry.executable != (path in executable):
            found, expected = _mode(entry.executable), _mode(path in executable)
            yield Drift(prefix.root.name, DriftKind.CHANGED_MODE, package.name, path, found, expected)


def _extra(prefix: Prefix, known: set[str]) -> Iterator[Drift]:
    """Files that nothing explains; a folder in which nothing is explained is named once."""
    explained = {parent for path in known for parent in _parents(path)}
    folders: Counter[str] = Counter()
    for path, entry in prefix.entries.items():
        if path in known:
            continue
        top = next((parent for parent in _parents(path) if parent not in explained), None)
        if top is None:
            yield Drift(prefix.root.name, DriftKind.EXTRA_FILE, "", path, _purpose(path, entry), "nothing")
        else:
            folders[top] += 1
    for top, count in folders.items():
        words = f"a folder with {count} file{'s' if count > 1 else ''}"
        yield Drift(prefix.root.name, DriftKind.EXTRA_FILE, "", top, words, "nothing")


def _parents(path: str) -> Iterator[str]:
    """The folders that hold `path`, each with a slash at its end, from the top."""
    return (path[: match.end()] for match in re.finditer("/", path))


def _purpose(path: str, entry: Entry) -> str:
    name = path.rpartition("/")[2]
    starts = name.endswith(".pth") or name in ("sitecustomize.py", "usercustomize.py")
    return f"{_described(entry)}{' that runs whenever this Python starts' if starts else ''}"


def _described(entry: Entry) -> str:
    if entry.link is not None:
        return f"a link to {entry.link}"
    return "a file" if entry.regular else "neither a file nor a link"


def _mode(executable: bool) -> str:
    return "executable" if executable else "not executable"
