"""Making hash locks from the inputs that people edit: `envs/**/*.in` to `.lock`, through uv's resolver.

Every lock is solved for each processor and says at its top for which. A lock keeps the versions that it has while they
fit, so that a second run changes nothing. It holds no address: whoever installs from it asks his own index.
"""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .errors import fail
from .indexes import index_settings
from .lockfile import LockedPackage, read_lock
from .process import CommandFailed, clean_environment, run
from .project import project_root, replace_text, write_errors
from .targets import Target, target_table

__all__ = ["HALVES", "HashLock", "LockResult", "conda_locks", "hash_locks", "make_locks"]

HALVES = ("toolchain", "runtime")


@dataclass(frozen=True)
class HashLock:
    """One lock and the input that it is made from. `target` is empty for those of the tool itself."""

    name: str
    target: str
    source: Path
    lock: Path
    overrides: Path | None


@dataclass(frozen=True)
class LockResult:
    """What `make_locks` did: `changed` says whether the file is another one now (or would be)."""

    lock: str
    path: Path
    packages: int
    changed: bool

    def as_dict(self) -> dict[str, object]:
        return {"lock": self.lock, "path": str(self.path), "packages": self.packages, "changed": self.changed}


def hash_locks(target: Target | None = None, envs: Path | None = None) -> tuple[HashLock, ...]:
    """The hash locks of `target`, or with None all of them: the tool's own first, then each target's two halves."""
    envs = envs or project_root() / "envs"
    own = [] if target else [("", name) for name in ("tool", "dev")]
    names = [target.name] if target else list(target_table().targets)
    wanted = [*own, *((name, half) for name in names for half in HALVES)]
    return tuple(_hash_lock(envs, folder, name) for folder, name in wanted if (envs / folder / f"{name}.in").is_file())


def _hash_lock(envs: Path, target: str, name: str) -> HashLock:
    source = envs / target / f"{name}.in"
    overrides = source.with_suffix(".overrides")
    label = f"{target}/{name}" if target else name
    return HashLock(label, target, source, source.with_suffix(".lock"), overrides if overrides.is_file() else None)


def make_locks(
    locks: Sequence[HashLock],
    *,
    upgrade: bool = False,
    check: bool = False,
    offline: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> tuple[LockResult, ...]:
    """Solve each of `locks` and write those that change, all or none.

    `upgrade` forgets the versions that a lock has. `check` writes nothing. Raises AW109 outside a checkout, AW315 with
    the solver's own words when an input cannot be solved, AW322 with `check` when a lock is not what its input gives.
    """
    _require_checkout(check)
    texts: dict[HashLock, str] = {}
    for lock in locks:
        report(f"solving envs/{lock.name}.in for {', '.join(target_table().processors)}")
        texts[lock] = _solve(lock, upgrade, offline)
    results = []
    for lock, text in texts.items():
        changed = not lock.lock.is_file() or lock.lock.read_text(encoding="utf-8") != text
        results.append(LockResult(lock.name, lock.lock, _count(text), changed))
    stale = [result.lock for result in results if result.changed]
    if check and stale:
        raise fail(
            "AW322",
            found=f"{', '.join(stale)}: not what the input gives",
            needed="locks that fit their inputs",
            why="an environment would be made from other versions than the inputs ask for",
            fix="run `archwright env lock`, look at `git diff envs` and commit it",
        )
    if not check:
        with write_errors(project_root() / "envs"):
            for result, text in zip(results, texts.values(), strict=True):
                if result.changed:
                    replace_text(result.path, text)
    return tuple(results)


def _count(text: str) -> int:
    return len(re.findall(r"^[A-Za-z0-9]", text, re.M))


def conda_locks(
    targets: Sequence[Target], upgrade: bool, check: bool, offline: bool, report: Callable[[str], None]
) -> tuple[LockResult, ...]:
    """Make the conda locks of `targets` again: conda-lock solves, and needs a channel. Raises as `lock_conda` does.

    Raises AW109 without a target, or for `check` and `offline`, which conda-lock cannot do.
    """
    if check or offline or not targets:
        raise fail(
            "AW109",
            found="--check" if check else "--offline" if offline else "no target",
            needed="`archwright env lock TARGET... --flavour conda`",
            why="conda-lock asks the channel and writes the lock; each target may need another channel",
            fix="name the targets, and leave --check and --offline out",
        )
    _require_checkout(check=False)
    from .condalock import read_conda_lock
    from .condalocking import lock_conda

    results = []
    for target in targets:
        path = project_root() / "envs" / target.name / "conda-lock.yml"
        before = path.read_bytes() if path.is_file() else b""
        lock_conda(path.parent, upgrade=upgrade, report=report)
        count = len(read_conda_lock(path).entries)
        results.append(LockResult(f"{target.name}/conda-lock", path, count, path.read_bytes() != before))
    return tuple(results)


def _require_checkout(check: bool) -> None:
    """Locks are changed in a checkout only."""
    if not (project_root() / "pyproject.toml").is_file() or not (check or os.access(project_root() / "envs", os.W_OK)):
        raise fail(
            "AW109",
            found=f"{project_root()}, which is an installed copy of the tool or read-only",
            needed="a checkout of the project",
            why="locks are changed where they are reviewed and committed",
            fix="run it in a checkout: ./bootstrap archwright env lock",
        )


def _solve(lock: HashLock, upgrade: bool, offline: bool) -> str:
    """The text of the lock for all processors together."""
    with tempfile.TemporaryDirectory(prefix="archwright-lock-") as scratch:
        solved = {}
        for processor, glibc in target_table().processors.items():
            output = Path(scratch) / f"{processor}.lock"
            if lock.lock.is_file() and not upgrade:
                output.write_text(lock.lock.read_text(encoding="utf-8"), encoding="utf-8")
            _compile(lock, f"{processor}-manylinux_{glibc.replace('.', '_')}", output, upgrade, offline)
            solved[processor] = read_lock(output)
    return _text(lock, _merge(lock, solved), _reasons(lock))


def _compile(lock: HashLock, platform: str, output: Path, upgrade: bool, offline: bool) -> None:
    from uv import find_uv_bin

    command: list[str | Path] = [
        *(find_uv_bin(), "pip", "compile", "--generate-hashes", "--no-emit-index-url", "--no-config", "--no-header"),
        *("--quiet", "--python-platform", platform, "--python-version", target_table().python),
        *("--only-binary", ":all:", os.path.relpath(lock.source, lock.source.parents[1]), "-o", output),
        *(["--override", os.path.relpath(lock.overrides, lock.source.parents[1])] if lock.overrides else []),
        *(["--upgrade"] if upgrade else []),
        *(["--offline"] if offline else []),
    ]
    env = clean_environment() | {"UV_PYTHON_DOWNLOADS": "never"} | index_settings().uv_environment()
    try:
        run(command, cwd=lock.source.parents[1], env=env, timeout=900)
    except CommandFailed as error:
        raise fail(
            "AW315",
            found=f"envs/{lock.name}.in has no solution for {platform}",
            needed="versions that fit together and have wheels for that platform",
            why="only what was solved is locked",
            fix=f"change a pin in {lock.source} (what wins over other packages' pins goes into "
            f"{lock.source.with_suffix('.overrides').name}), or check the network when it speaks of fetching",
            detail=error.output[-3000:],
        ) from error


def _merge(lock: HashLock, solved: Mapping[str, dict[str, LockedPackage]]) -> list[LockedPackage]:
    """Each package of any processor; the marker of one that only some need says which.

    Raises AW315 when two processors need different versions.
    """
    everywhere: dict[str, dict[str, LockedPackage]] = {}
    for processor, packages in solved.items():
        for name, package in packages.items():
            everywhere.setdefault(name, {})[processor] = package
    merged = []
    for name, by_processor in sorted(everywhere.items()):
        found = {(package.version, package.hashes) for package in by_processor.values()}
        if len(found) > 1:
            versions = ", ".join(f"{package.version} on {processor}" for processor, package in by_processor.items())
            raise fail(
                "AW315",
                found=f"envs/{lock.name}.in gives {name} {versions}",
                needed="one version for every processor",
                why="one lock serves them all",
                fix=f"pin {name} in {lock.source}",
            )
        machines = " or ".join(f'platform_machine == "{processor}"' for processor in by_processor)
        package = replace(
            next(iter(by_processor.values())),
            why=tuple(line for each in by_processor.values() for line in each.why),
            marker="" if len(by_processor) == len(solved) else machines,
        )
        merged.append(package)
    return merged


def _reasons(lock: HashLock) -> dict[str, str]:
    """Comments on requirements' own lines, by canonical name, of the input, its overrides and what they include."""
    found: dict[str, str] = {}
    for path in filter(None, (lock.source, lock.overrides)):
        for requirement, comment in _requirements(path):
            if comment:
                found[canonicalize_name(requirement.name)] = comment
    return found


def _requirements(path: Path) -> Iterator[tuple[Requirement, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        text, _, comment = line.partition(" #")
        if text.startswith("-r "):
            yield from _requirements(path.parent / text[3:].strip())
        elif text.strip() and not text.startswith(("#", "-")):
            try:
                yield Requirement(text), comment.strip()
            except InvalidRequirement:
                continue  # uv names the line when it solves


def _text(lock: HashLock, packages: Sequence[LockedPackage], reasons: Mapping[str, str]) -> str:
    table = target_table()
    where = " and ".join(f"{processor} (glibc >= {glibc})" for processor, glibc in table.processors.items())
    lines = [
        f"# Made by `archwright env lock` from {lock.source.name}, for Python {table.python} on {where}.",
        "# Change the input and make it again.",
    ]
    for package in packages:
        lines.append(f"{package.name}=={package.version}{f' ; {package.marker}' if package.marker else ''} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in package.hashes]
        lines[-1] = lines[-1].removesuffix(" \\")
        lines += _because(package, reasons.get(package.name, ""))
    return "\n".join(lines) + "\n"


def _because(package: LockedPackage, reason: str) -> Iterator[str]:
    askers = sorted({word for line in package.why if not line.startswith("reason:") for word in _asker(line)})
    if askers:
        yield from textwrap.wrap(", ".join(askers), 116, initial_indent="    # via ", subsequent_indent="    #     ")
    if reason:
        yield from textwrap.wrap(reason, 116, initial_indent="    # reason: ", subsequent_indent="    #     ")


def _asker(line: str) -> list[str]:
    """Who asks for a package, of one line of uv's comment (`via torch`, or a line below a bare `via`)."""
    text = line.removeprefix("via").strip()
    return [text] if text else []
