"""The locked environment of a target: two prefixes, a toolkit view and a host compiler, in the cache.

    <cache>/envs/<target>-<digest>/
        toolchain/   Python, nvcc and its headers, CMake, Ninja, scikit-build-core (from toolchain.lock)
        runtime/     Python, torch and everything it pins (from runtime.lock)
        cuda/        the toolkit view, for NVIDIA's targets
        conda/       in the conda flavour: CUDA, GCC, the sysroot and Python (from conda-lock.yml)
        compilers.json  what compiles: compiler caches depend on it
        contents.json   what was installed, for `archwright env check`
        env.json     written last: a folder without it is half-made, and is made again

The digest covers what is locked, the Python and the host compiler, so a complete environment is never changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import filelock
from packaging.version import Version

from .compiler import HostCompiler, choose_compiler
from .condatoolchain import conda_compilers, conda_python, conda_toolkit, without_cuda
from .contents import damaged_packages, record_contents, verify_halves
from .errors import ArchwrightError, fail
from .indexes import Flavour, Installer
from .installing import PackageSource, forget_cached, install_lock
from .interpreter import Interpreter, find_python
from .lockfile import lock_content
from .locking import HALVES
from .project import cache_dir, project_root, replace_text, require_space, write_errors
from .sources import sha256_of
from .targets import Target
from .toolkit import ToolkitParts, make_toolkit_view, nvcc_release, toolkit_releases

__all__ = [
    "Environment",
    "check_nccl_root",
    "conda_lock_of",
    "create_environment",
    "environment_of_prefix",
    "find_environment",
    "has_locks",
    "locks_in",
    "require_environment",
    "use_nccl_root",
]


_RECIPE = 6  # raise when the layout changes
_SPACE = 9 << 30  # both prefixes, unpacked, when nothing can be hard-linked from the installer's cache


@dataclass(frozen=True)
class Environment:
    """A complete environment. Paths are absolute; `locks` maps lock name to sha256."""

    target: str
    digest: str
    path: Path
    toolchain: Path
    runtime: Path
    toolkit: Path
    python: str
    nvcc: str
    torch: str
    nccl: str
    nccl_root: Path
    cxx: Path
    cc: Path
    gcc: str
    compiler_origin: str
    compiler_packages: dict[str, str]
    locks: dict[str, str]
    flavour: Flavour = Flavour.PACKAGES

    @property
    def toolkit_release(self) -> str:
        """CUDA release as in wheel names: `cu132`. Not for Ascend: `ascend.toolkit_of`."""
        return "cu" + "".join(self.nvcc.split(".")[:2])

    @property
    def torch_include(self) -> tuple[Path, ...]:
        root = self.runtime_site / "torch" / "include"
        return (root, root / "torch" / "csrc" / "api" / "include")

    @property
    def runtime_site(self) -> Path:
        return _site_packages(self.runtime)

    @property
    def compilers(self) -> Path:
        """A file that changes when a compiler does, and not when another locked package does."""
        return self.path / "compilers.json"

    def as_dict(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def load(cls, record: Path) -> Environment:
        data = json.loads(record.read_text(encoding="utf-8"))
        paths = {"path", "toolchain", "runtime", "toolkit", "nccl_root", "cxx", "cc"}
        values: dict[str, Any] = {key: Path(value) if key in paths else value for key, value in data.items()}
        return cls(**values | {"flavour": Flavour(values.get("flavour", Flavour.PACKAGES))})


def create_environment(
    target: Target,
    *,
    python: str | None = None,
    source: PackageSource | None = None,
    flavour: Flavour = Flavour.PACKAGES,
    again: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> Environment:
    """Create the environment of `target`, or return it when it is complete already.

    `again` makes it anew and has uv forget its copies of the packages that differ from what was locked. Every hash is
    checked twice: of each package before it is unpacked, and of each file after it was installed. Raises AW301 to
    AW320; AW306 or AW333 when a package cannot be installed as locked.
    """
    if not has_locks(target):
        raise fail(
            "AW307",
            found=f"no locks for {target.name} in envs/{target.name}",
            needed="a toolchain lock and a runtime lock",
            why="environments are only made from locks",
            fix=f"`archwright env lock {target.name}` in a checkout makes them from their inputs",
        )
    source = source or PackageSource()
    machine = _machine(flavour, python, offline=source.offline)
    path, digest = _location(target, machine)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.parent / f".{path.name}.lock"):
            if again:
                forget_cached(damaged_packages(path, locks_in(path, target)))
            if again or not (path / "env.json").is_file():
                require_space(path, _SPACE, f"the environment of {target.name}")
                shutil.rmtree(path, ignore_errors=True)
                _make(path, digest, target, machine, source, report)
    return Environment.load(path / "env.json")


def find_environment(
    target: Target, *, python: str | None = None, flavour: Flavour = Flavour.PACKAGES
) -> Environment | None:
    """The complete environment that fits the locks, Python and compiler of now; None when there is none."""
    try:
        path, _ = _location(target, _machine(flavour, python, offline=True))
        return Environment.load(path / "env.json")
    except (ArchwrightError, OSError, ValueError, TypeError, KeyError):
        return None


def require_environment(
    target: Target, *, python: str | None = None, flavour: Flavour = Flavour.PACKAGES
) -> Environment:
    """`find_environment`, or AW307 when there is none."""
    found = find_environment(target, python=python, flavour=flavour)
    if found is None:
        more = "" if flavour is Flavour.PACKAGES else f" --flavour {flavour}"
        raise fail(
            "AW307",
            found=f"no complete environment of {target.name} for these locks, this Python and this compiler",
            needed="one that `archwright env create` made",
            why="there is nothing to look at",
            fix=f"archwright env create {target.name}{more}",
        )
    return found


def environment_of_prefix(prefix: Path | None = None) -> Environment:
    """The environment whose toolchain prefix this Python (or `prefix`) is. Raises AW307 when it is none."""
    prefix = prefix or Path(sys.prefix)
    record = prefix.parent / "env.json"
    if not record.is_file():
        raise fail(
            "AW307",
            found=f"{prefix} is not the toolchain of an Archwright environment",
            needed="the Python of a complete environment",
            why="the compiler, CUDA and torch that a wheel is built with all come from its locks",
            fix="`archwright env create sm100` prints the path; use its toolchain/bin/pip with --no-build-isolation",
        )
    return Environment.load(record)


def use_nccl_root(environment: Environment, root: Path | None) -> Environment:
    """The environment with NCCL from `root` instead of the locked one (case B4: an explicit, validated choice)."""
    if root is None:
        return environment
    check_nccl_root(root)
    return replace(environment, nccl_root=root.resolve(), nccl=_nccl_version(root))


def check_nccl_root(root: Path) -> None:
    """Raise AW312 unless `root` has include/nccl.h and lib/libnccl.so.2."""
    missing = [name for name in ("include/nccl.h", "lib/libnccl.so.2") if not (root / name).is_file()]
    if not missing and "?" in _nccl_version(root):
        missing = ["NCCL_MAJOR, NCCL_MINOR and NCCL_PATCH in include/nccl.h"]
    if missing:
        raise fail(
            "AW312",
            found=f"{root} lacks {' and '.join(missing)}",
            needed="the root folder of an NCCL installation",
            why="a wrong root would surface much later as a missing header or symbol; nothing is searched for",
            fix="name the folder that holds include/ and lib/, or leave --nccl-root out to use the locked NCCL",
        )


def _nccl_version(root: Path) -> str:
    values = {
        words[1]: words[2]
        for line in (root / "include" / "nccl.h").read_text(errors="replace").splitlines()
        if len(words := line.split()) >= 3 and words[0] == "#define"
    }
    return ".".join(values.get(f"NCCL_{part}", "?") for part in ("MAJOR", "MINOR", "PATCH"))


def has_locks(target: Target) -> bool:
    """Whether both halves of the target's environment are locked in this project."""
    return len(_locks(target)) == 2


def _locks(target: Target) -> dict[str, Path]:
    folder = project_root() / "envs" / target.name
    return {p.stem: p for p in (folder / "toolchain.lock", folder / "runtime.lock") if p.is_file()}


def conda_lock_of(target: Target) -> Path:
    """Where the target's conda lock is, whether it was locked or says that it was not."""
    return project_root() / "envs" / target.name / "conda-lock.yml"


def locks_in(path: Path, target: Target) -> dict[str, Path]:
    """The hash lock of each half of the environment in `path`: the conda flavour has its own for the toolchain."""
    own = path / "toolchain.lock"
    return _locks(target) | ({"toolchain": own} if own.is_file() else {})


@dataclass(frozen=True)
class _Machine:
    """What this machine brings into an environment."""

    interpreter: Interpreter
    compiler: HostCompiler


def _machine(flavour: Flavour, python: str | None, *, offline: bool) -> _Machine | None:
    """None in the conda flavour, which brings its own."""
    if flavour is Flavour.PACKAGES:
        return _Machine(find_python(python), choose_compiler(offline=offline))
    if python is not None:
        raise fail(
            "AW109",
            found=f"--python {python} with the conda flavour",
            needed="no --python",
            why="the conda lock has a Python of its own",
            fix="leave --python out, or use the default flavour",
        )
    return None


def _location(target: Target, machine: _Machine | None) -> tuple[Path, str]:
    """Where the environment is. What a lock says counts, not its comments."""
    parts: list[Any] = [
        _RECIPE,
        {name: lock_content(path) for name, path in _locks(target).items()},
    ]
    if machine is None:
        parts += [sha256_of(conda_lock_of(target))]
        name = f"{target.name}-{Flavour.CONDA}"
    else:
        python, compiler = machine.interpreter, machine.compiler
        parts += [[python.version, str(python.path)], [compiler.version, str(compiler.cxx), compiler.packages]]
        name = target.name
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "envs" / f"{name}-{digest[:12]}", digest


def _make(
    path: Path,
    digest: str,
    target: Target,
    machine: _Machine | None,
    source: PackageSource,
    report: Callable[[str], None],
) -> None:
    flavour = Flavour.CONDA if machine is None else Flavour.PACKAGES
    machine = machine or _install_conda(path, target, source, report)
    compiler, locks = machine.compiler, locks_in(path, target)
    for half in HALVES:
        _install(path / half, locks[half], machine.interpreter, source, report)
    toolkit, nvcc = path / "cuda", ""
    if target.vendor == "nvidia":
        parts = ToolkitParts.below(_site_packages(path / "toolchain") / "nvidia" / "cu13")
        if flavour is Flavour.CONDA:
            parts = conda_toolkit(path / "conda")
        make_toolkit_view(parts, toolkit, compiler.cc)
        toolkit_releases(toolkit)
        nvcc = nvcc_release(toolkit / "bin" / "nvcc")
    runtime = {d.name: d.version for d in distributions(path=[str(_site_packages(path / "runtime"))])}
    environment = Environment(
        target=target.name,
        digest=digest,
        path=path,
        toolchain=path / "toolchain",
        runtime=path / "runtime",
        toolkit=toolkit,
        python=machine.interpreter.version,
        nvcc=nvcc,
        torch=str(Version(runtime["torch"]).public),
        nccl=runtime.get("nvidia-nccl-cu13", ""),
        nccl_root=_site_packages(path / "runtime") / "nvidia" / "nccl",
        cxx=compiler.cxx,
        cc=compiler.cc,
        gcc=compiler.version,
        compiler_origin=compiler.origin,
        compiler_packages=compiler.packages,
        locks={name: sha256_of(lock) for name, lock in _locks(target).items()}
        | ({"conda": sha256_of(conda_lock_of(target))} if flavour is Flavour.CONDA else {}),
        flavour=flavour,
    )
    _write_compilers(environment)
    record_contents(path, HALVES)
    replace_text(path / "env.json", json.dumps(environment.as_dict(), indent=1))


def _install_conda(path: Path, target: Target, source: PackageSource, report: Callable[[str], None]) -> _Machine:
    """Install the conda prefix, and write the hash lock of what the toolchain half still needs beside it."""
    from .condainstall import install_conda

    report(f"installing the conda prefix from envs/{target.name}/conda-lock.yml")
    path.mkdir()
    prefix = path / "conda"
    install_conda(conda_lock_of(target), prefix, offline=source.offline, report=report)
    lock = _locks(target)["toolchain"].read_text(encoding="utf-8")
    (path / "toolchain.lock").write_text(without_cuda(lock), encoding="utf-8")
    return _Machine(conda_python(prefix), conda_compilers(prefix, path / "compiler"))


def _install(
    prefix: Path, lock: Path, interpreter: Interpreter, source: PackageSource, report: Callable[[str], None]
) -> None:
    """Install one half and verify every file of it; once more when the installer's cache gave a damaged file."""
    path, half = prefix.parent, prefix.name
    report(f"installing the {half} half from {lock.parent.name}/{lock.name} with {source.installer}")
    install_lock(prefix, lock, interpreter, source)
    drifts = verify_halves(path, (half,))
    if drifts and source.installer is Installer.UV:
        names = tuple(sorted({drift.package for drift in drifts if drift.package}))
        report(f"{', '.join(names)}: damaged in the installer's cache; installing again")
        forget_cached(names)
        shutil.rmtree(prefix)
        install_lock(prefix, lock, interpreter, source)
        drifts = verify_halves(path, (half,))
    if drifts:
        raise fail(
            "AW306",
            found=f"{len(drifts)} files of {prefix} are not as their packages say, {drifts[0]}",
            needed="every file with the hash in its package's RECORD",
            why="the lock vouches for the packages; what was unpacked from them is something else",
            fix=f"`{'uv cache clean' if source.installer is Installer.UV else 'pip cache purge'}`, check the disk, and "
            "run it again",
            detail="\n".join(str(drift) for drift in drifts[:20]),
        )


def _write_compilers(environment: Environment) -> None:
    """nvcc starts programs of its own (cicc, ptxas), which a compiler cache that hashes `nvcc` does not see."""
    installed = distributions(path=[str(_site_packages(environment.toolchain))])
    cuda = {d.name: d.version for d in installed if d.name.startswith(("nvidia-", "cuda-"))}
    facts = {"cuda": cuda, "gcc": environment.gcc, "packages": environment.compiler_packages}
    if environment.flavour is Flavour.CONDA:
        facts["conda"] = environment.locks["conda"]
    environment.compilers.write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


def _site_packages(prefix: Path) -> Path:
    return next((prefix / "lib").glob("python3.*")) / "site-packages"
