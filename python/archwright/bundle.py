"""Using a disconnected bundle: a folder that holds all that a target's build needs besides the machine's Python.

    bundle.json   what it is for, and what each file is
    SHA256SUMS    of every other file
    README.txt    how to use it
    setup         makes an environment with the archwright command from it
    sources/      upstream's source archives, by sha256
    wheels/       every wheel of the toolchain half, the runtime half and the tool
    compiler/     the packages of the provisioned compiler, when that is what builds
    tool/         the tool itself

`exporting` makes it. Nothing of it is used before every file was found to be as it was made; the cache remembers that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from .components import components
from .debian import PackageParts, keep_packages
from .errors import ArchwrightError, fail
from .files import copy_verified, hash_files
from .lockfile import lock_content, packages_for
from .locking import HALVES
from .machine import glibc_version
from .project import cache_dir, project_root, replace_text, write_errors
from .sources import sha256_of
from .targets import Target, target_table

__all__ = ["ABOUT", "SUMS", "Bundle", "lock_digests", "lock_paths", "open_bundle", "read_bundle"]

ABOUT, SUMS = "bundle.json", "SHA256SUMS"
_SCHEMA = Path(__file__).resolve().parent / "schemas" / "bundle.schema.json"


@dataclass(frozen=True)
class Bundle:
    """A bundle as its bundle.json describes it. `digest` is the sha256 of its SHA256SUMS, which stands for all of it.

    `components` maps each to the sha256 of its source archive, `locks` each lock to the digest of what it says.
    """

    folder: Path
    digest: str
    archwright: str
    target: str
    processor: str
    python: str
    glibc: str
    components: dict[str, str]
    locks: dict[str, str]
    compiler: PackageParts
    files: dict[str, dict[str, Any]]

    @property
    def wheels(self) -> Path:
        """The folder that an installer finds every locked wheel in."""
        return self.folder / "wheels"

    @property
    def size(self) -> int:
        return sum(int(about["size"]) for about in self.files.values())

    def seed_cache(self) -> None:
        """Put the source archives, and the compiler's packages, where fetching and provisioning look first."""
        with write_errors(cache_dir()):
            for digest in self.components.values():
                name = f"{digest}.tar.gz"
                copy_verified(self.folder / "sources" / name, cache_dir() / "archives" / name, digest)
        if self.compiler:
            keep_packages(self.compiler, self.folder / "compiler")

    def as_dict(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name not in ("folder", "compiler", "files")}
        return {"folder": str(self.folder), **facts, "compiler": bool(self.compiler), "size": self.size}

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.folder}"
        yield f"  for         {self.target} on {self.processor}, CPython {self.python}, glibc {self.glibc} or newer"
        yield f"  components  {', '.join(self.components) or 'none'}"
        yield f"  compiler    {'GCC 14 and its sysroot' if self.compiler else 'none: the machine must have its own'}"
        yield f"  size        {self.size / 1e9:.2f} GB in {len(self.files) + 2} files"
        yield f"  sha256      {self.digest}  {SUMS}"


def open_bundle(
    folder: Path,
    target: Target | None = None,
    *,
    names: Sequence[str] = (),
    report: Callable[[str], None] = lambda message: None,
) -> Bundle:
    """The bundle in `folder`, after it was found to fit this tool, machine and `target`, and to be undamaged.

    `names` are components that it must have. Every file is hashed once; after that, as long as none changes, only their
    sizes and times are looked at. Raises AW321.
    """
    bundle = read_bundle(folder)
    _check_fit(bundle, target, names)
    problems = _problems(bundle, report)
    if problems:
        raise _damaged(bundle.folder, problems)
    return bundle


def read_bundle(folder: Path) -> Bundle:
    """What the bundle in `folder` says about itself; no other file is looked at. Raises AW321."""
    import jsonschema  # slow to import

    folder = Path(os.path.realpath(folder))
    try:
        for name in (ABOUT, SUMS):
            if (folder / name).is_symlink():
                raise ValueError(f"{name} is a link")
        data = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        jsonschema.validate(data, json.loads(_SCHEMA.read_text(encoding="utf-8")))
        del data["schema"]
        return Bundle(folder=folder, digest=sha256_of(folder / SUMS), **data)
    except jsonschema.ValidationError as error:
        raise _damaged(folder, [f"{ABOUT}: {error.json_path}: {error.message}"]) from error
    except (OSError, ValueError) as error:
        raise _damaged(folder, [str(error)]) from error


def lock_paths(target: Target) -> dict[str, Path]:
    """The locks whose wheels a bundle holds."""
    envs = project_root() / "envs"
    halves = {name: envs / target.name / f"{name}.lock" for name in HALVES}
    return {**halves, "tool": envs / "tool.lock"}


def lock_digests(target: Target) -> dict[str, str]:
    """The sha256 of what each lock says: its comments do not count."""
    return {
        name: hashlib.sha256(json.dumps(lock_content(path)).encode()).hexdigest()
        for name, path in lock_paths(target).items()
    }


def _check_fit(bundle: Bundle, target: Target | None, names: Sequence[str]) -> None:
    table = target_table()
    found, needed = [], []

    def compare(what: str, has: str, wants: str) -> None:
        if has != wants:
            found.append(f"{what} {has}")
            needed.append(f"{what} {wants}")

    compare("target", bundle.target, target.name if target else bundle.target)
    compare("processor", bundle.processor, os.uname().machine)
    compare("Python", bundle.python, table.python)
    for name in names:
        if name not in bundle.components:
            found.append(f"no {name}")
            needed.append(f"the sources of {name}")
    if bundle.target not in table.targets:
        compare("target", bundle.target, "that this tool knows")
    known = components()
    for name, digest in bundle.components.items():
        compare(f"{name} from", digest[:12], known[name].sha256[:12] if name in known else "nowhere")
    glibc = glibc_version()
    if glibc and Version(glibc) < Version(bundle.glibc):
        found.append(f"glibc {glibc} on this machine")
        needed.append(f"glibc {bundle.glibc} or newer")
    if not found:
        mine = lock_digests(table.targets[bundle.target])
        for name in HALVES:
            compare(f"{name}.lock", bundle.locks[name][:12], mine[name][:12])
    if found:
        raise fail(
            "AW321",
            found=f"{bundle.folder}: {', '.join(found)}",
            needed=", ".join(needed),
            why="a bundle holds what one target, processor and set of locks need, and nothing else",
            fix=f"use the tool that is in it (its `setup`), or export another: `archwright env export "
            f"{target.name if target else bundle.target}`",
        )


def _problems(bundle: Bundle, report: Callable[[str], None]) -> list[str]:
    """What is wrong with the bundle's files, each by name; empty when every one is as it was made."""
    try:
        sums = _read_sums(bundle.folder / SUMS)
    except (OSError, ValueError) as error:
        return [f"{SUMS}: {error}"]
    found, problems = _walk(bundle.folder)
    problems += [f"{name}: missing" for name in sums.keys() - found.keys()]
    problems += [f"{name}: not part of the bundle" for name in found.keys() - sums.keys()]
    for name, about in bundle.files.items():
        if name in found and found[name].st_size != about["size"]:
            problems.append(f"{name}: {found[name].st_size} bytes instead of {about['size']}")
    problems += _not_as_locked(bundle, sums)
    if problems:
        return sorted(problems)
    stats = {name: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in found.items()}
    memory = cache_dir() / "bundles" / f"{hashlib.sha256(f'{bundle.digest} {bundle.folder}'.encode()).hexdigest()}.json"
    if not _remembered(memory, stats):
        problems = _hash_all(bundle, sums, report)
        if not problems:
            with write_errors(memory):
                memory.parent.mkdir(exist_ok=True)
                replace_text(memory, json.dumps(stats))
    return problems


def _remembered(memory: Path, stats: dict[str, list[int]]) -> bool:
    try:
        return bool(json.loads(memory.read_text(encoding="utf-8")) == stats)
    except (OSError, ValueError):
        return False


def _hash_all(bundle: Bundle, sums: dict[str, str], report: Callable[[str], None]) -> list[str]:
    report(f"verifying {len(sums)} files of {bundle.folder} ({bundle.size / 1e9:.1f} GB), once")
    digests = hash_files([bundle.folder / name for name in sums], report)
    problems = []
    for name, digest in sums.items():
        found = digests[bundle.folder / name]
        if found != digest:
            problems.append(f"{name}: {found if ' ' in found else f'sha256 {found} instead of {digest}'}")
    return sorted(problems)


def _read_sums(path: Path) -> dict[str, str]:
    sums = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)
        if match is None:
            raise ValueError(f"'{line[:80]}' is no line of it")
        sums[match[2]] = match[1]
    return sums


def _walk(folder: Path) -> tuple[dict[str, os.stat_result], list[str]]:
    """Every regular file but SHA256SUMS, by its path in the bundle, and what else there is. Links are not followed."""
    found: dict[str, os.stat_result] = {}
    problems = []
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            where = str(path.relative_to(folder))
            if path.is_symlink():
                problems.append(f"{where}: a link to {path.readlink()}")
            elif path.is_file():
                found[where] = path.lstat()
            elif not path.is_dir():
                problems.append(f"{where}: neither a file nor a folder")
    found.pop(SUMS, None)
    return found, problems


def _not_as_locked(bundle: Bundle, sums: dict[str, str]) -> Iterator[str]:
    """SHA256SUMS is of the bundle's own making; what the locks, recipes and bundle.json name must be what it lists."""
    wheels = {digest for name, digest in sums.items() if name.startswith("wheels/")}
    target = target_table().targets[bundle.target]
    mine = lock_digests(target)
    for lock, path in lock_paths(target).items():
        if mine[lock] != bundle.locks[lock]:
            continue  # only the tool's own lock can differ here; its wheels are for `setup` alone
        for package in packages_for(path, bundle.processor).values():
            if wheels.isdisjoint(package.hashes):
                yield f"wheels/: no {package.name} {package.version} with a sha256 of {lock}.lock"
    for component, digest in bundle.components.items():
        if sums.get(f"sources/{digest}.tar.gz") != digest:
            yield f"sources/{digest}.tar.gz: not listed as the sources of {component}"
    for packages in bundle.compiler.values():
        for name, digest in packages.items():
            if sums.get(f"compiler/{name}") != digest:
                yield f"compiler/{name}: not listed with the sha256 that {ABOUT} gives it"


def _damaged(folder: Path, problems: list[str]) -> ArchwrightError:
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return fail(
        "AW321",
        found=f"{folder}: {'; '.join(problems[:3])}{more}",
        needed="a bundle as `archwright env export` made it, every file of it",
        why="a file that is damaged, missing or added would be used where nothing else vouches for it",
        fix=f"copy it again and compare: `cd {folder} && sha256sum --quiet -c {SUMS}`",
        detail="\n".join(problems[:50]) if len(problems) > 3 else "",
    )
