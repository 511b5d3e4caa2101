"""Building wheels: one pool over all components, progress, resume, and failures that show the one command.

Each component is built by its own `pip wheel` (the command that docs/building.md gives for use without the tool), all
at the same time; their compiles take turns in the pool.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .ascend import cann_for, toolkit_of
from .backend import build_folder, wheel_version
from .cellock import HELD, cell_lock
from .components import Component
from .environment import Environment
from .errors import fail
from .evidence import evidence_path, write_evidence
from .explain import explain_failure
from .freeze import freeze_for, freeze_path, write_freeze
from .gates import gate_error
from .inspection import DEVICE_COMPILE, inspect_wheel
from .manifests import Lowered, lowered_in, read_manifest
from .measured import Toolchain, remember, units_for
from .plan import Plan
from .pool import Measured, Pool
from .process import clean_environment
from .project import require_space, write_errors
from .sources import fetch
from .targets import Gencode, Target, Tier

__all__ = ["BuildOptions", "BuildResult", "BuiltWheel", "Observer", "build_wheels", "interruptible"]

#: Run in a component's folder, with the settings as words.
_HOST_ONLY = """\
import sys
sys.path.insert(0, "backend")
from component_backend import compile_host_files
compile_host_files(dict(word.split("=", 1) for word in sys.argv[1:]))
"""


@dataclass(frozen=True)
class BuildOptions:
    """`device` (a name in devices.toml) and `shapes` (a shape file, or the name of a shipped one) are for AOT packs.

    `host_only` compiles host files and makes no wheel.
    """

    offline: bool = False
    wait: bool = True
    compiler_cache: bool = True
    nccl_root: Path | None = None
    device: str | None = None
    shapes: str | None = None
    host_only: bool = False


@dataclass(frozen=True)
class BuiltWheel:
    """`evidence` is None for a source pack, where `lowered` says what it has: no compiler has seen it."""

    component: str
    path: Path
    sha256: str
    bytes: int
    evidence: Path | None
    lowered: Lowered | None = None


@dataclass(frozen=True)
class BuildResult:
    """What a build made: units compiled, taken from the compiler cache, and up to date; seconds are wall time.

    `retried` names the units whose compiler was killed for memory and that were compiled again, alone. `host_files`
    counts what a build of host files alone has objects of; `device_compile` says what is known of an Ascend target's
    device code.
    """

    target: str
    wheels: tuple[BuiltWheel, ...]
    compiled: int
    cached: int
    up_to_date: int
    seconds: float
    retried: tuple[str, ...] = ()
    host_files: int = 0
    device_compile: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Observer:
    """Callbacks of a build: a line of news, and each finished compile."""

    news: Callable[[str], None] = lambda message: None
    done: Callable[[Measured], None] = lambda measured: None


def build_wheels(
    target: Target,
    chosen: tuple[Component, ...],
    gencodes: tuple[Gencode, ...],
    environment: Environment,
    plan: Plan,
    out: Path,
    options: BuildOptions = BuildOptions(),
    observer: Observer = Observer(),
) -> BuildResult:
    """Build the wheels of `chosen` into `out`.

    Raises AW501 or AW502 with the failing command, AW503 when another build holds a cell and waiting is off, AW504
    when interrupted. Finished objects are kept in every case, and `out` only ever gets complete wheels.
    """
    start = time.monotonic()
    require_space(out, 2 << 30, "objects and wheels")
    sources = {component.name: fetch(component, offline=options.offline) for component in chosen}
    folders = {component.name: build_folder(component, target, gencodes, options.device) for component in chosen}
    roots = {c.name: c.unit_root(sources[c.name].path, folders[c.name]) for c in chosen}
    toolchain = Toolchain.of(environment, gencodes)
    units = {
        str(roots[component.name] / unit.path): replace(unit, path=f"{component.name}: {unit.label}")
        for component in chosen
        for unit in units_for(component, gencodes, toolchain)
    }
    with ExitStack() as stack:
        for name in sorted(folders):  # one order for everyone: two builds cannot wait for each other
            stack.enter_context(cell_lock(folders[name], wait=options.wait, on_wait=observer.news))
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".staging-", dir=out)))
        pool = stack.enter_context(Pool(plan.jobs, plan.memory_mib, units, observer.done, observer.news))
        run = _Run(target, gencodes, environment, options, pool, staging, folders)
        try:
            run.all(chosen, observer)
        finally:  # what was compiled before a failure was measured too
            for component in chosen:
                remember(toolchain, component, roots[component.name], pool.measured)
        wheels: tuple[BuiltWheel, ...] = ()
        if not options.host_only:
            frozen = freeze_for(environment, out, observer.news)
            wheels = tuple(_publish(component, run, staging, out, frozen) for component in chosen)
    went = [measured for measured in pool.measured if measured.unit is not None]
    cached = sum(measured.cached for measured in went)
    seconds = time.monotonic() - start
    counts = (len(went) - cached, cached, len(units) - len(went))
    host_files = len(units) if options.host_only else 0
    return BuildResult(
        target.name,
        wheels,
        *counts,
        seconds,
        tuple(pool.retried),
        host_files,
        DEVICE_COMPILE if target.is_ascend else None,
    )


class _Run:
    """The component builds of one command, as child processes that end together."""

    def __init__(
        self,
        target: Target,
        gencodes: tuple[Gencode, ...],
        environment: Environment,
        options: BuildOptions,
        pool: Pool,
        staging: Path,
        folders: dict[str, Path],
    ) -> None:
        self.target, self.gencodes, self.environment, self.options = target, gencodes, environment, options
        self.pool, self.staging, self.folders = pool, staging, folders
        self.children: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()

    def all(self, chosen: tuple[Component, ...], observer: Observer) -> None:
        """Build every component, or raise the error of the first that fails."""
        with ThreadPoolExecutor(len(chosen)) as threads, interruptible():
            try:
                pending = {threads.submit(self.one, component): component for component in chosen}
                for future in as_completed(pending):
                    future.result()
                    observer.news(f"{pending[future].name}: {'compiled' if self.options.host_only else 'wheel made'}")
            except KeyboardInterrupt:
                self.end()
                raise fail(
                    "AW504",
                    found="the build was interrupted",
                    needed="the build to finish",
                    why="finished objects are kept, half-written ones are not, and no lock is left behind",
                    fix="run the same command again: it goes on where it stopped",
                ) from None
            except BaseException:
                self.pool.stop()  # compiles that run may finish: their objects are kept
                raise

    def one(self, component: Component) -> None:
        settings = {
            "ARCHWRIGHT_TARGET": self.target.name,
            "ARCHWRIGHT_GENCODES": ",".join(g.name for g in self.gencodes),
        }
        if self.target.tier is Tier.EXPERIMENTAL:
            settings["ARCHWRIGHT_EXPERIMENTAL"] = "1"
        if self.options.nccl_root:
            settings["ARCHWRIGHT_NCCL_ROOT"] = str(self.options.nccl_root)
        if component.pack and self.options.device:
            settings["ARCHWRIGHT_DEVICE"] = self.options.device
        if component.pack and self.options.shapes:
            settings["ARCHWRIGHT_SHAPES"] = self.options.shapes
        python, staged = str(self.environment.toolchain / "bin" / "python"), str(self.staging / component.name)
        if self.options.host_only:
            command = [python, "-c", _HOST_ONLY, *(f"{key}={value}" for key, value in settings.items())]
        else:
            command = [
                *(python, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-index"),
                *("--disable-pip-version-check", "--wheel-dir", staged, str(component.folder)),
                *(word for key, value in settings.items() for word in ("-C", f"cmake.define.{key}={value}")),
            ]
        folder = self.folders[component.name]
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "build.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                cwd=component.folder if self.options.host_only else None,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with self.lock:
                self.children.append(child)
            status = child.wait()
        if status != 0:
            name = self._blamed() or component.name
            raise explain_failure(name, self.pool.failure, command, status, self.folders[name] / "build.log")

    def _blamed(self) -> str | None:
        """The component whose compile failed first: the others end because of it, and often before it does."""
        if self.pool.failure is None:
            return None
        source = self.pool.failure.source
        if unit := self.pool.costs.get(source):
            return unit.path.partition(":")[0]
        return next((name for name, folder in self.folders.items() if Path(source).is_relative_to(folder)), None)

    def end(self) -> None:
        """End every child with all that it started, politely and then not.

        Compilers outlive pip, and what runs the host code of an AOT pack outlives them: the sessions have to be empty.
        """
        self.pool.stop()
        with self.lock:
            leaders = [child.pid for child in self.children if child.poll() is None]
        for number, patience in ((signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
            for group in _session_groups(leaders):
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            end = time.monotonic() + patience
            while time.monotonic() < end and _session_groups(leaders):
                time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        env = clean_environment() | {"ARCHWRIGHT_POOL": self.pool.address, HELD: "1", "PYTHONUNBUFFERED": "1"}
        env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1"}
        if self.options.offline:
            env["ARCHWRIGHT_OFFLINE"] = "1"
        if not self.options.compiler_cache:
            env["ARCHWRIGHT_NO_CACHE"] = "1"
        return env


def _session_groups(leaders: list[int]) -> set[int]:
    """The process groups that live in the sessions of `leaders`: Ninja gives its compilers groups of their own."""
    groups = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, session, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) in leaders and state != "Z":
            groups.add(int(group))
    return groups


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C while a build runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _publish(component: Component, run: _Run, staging: Path, out: Path, frozen: dict[str, Any]) -> BuiltWheel:
    """Move the finished wheel into `out` and drop an earlier one of the same version."""
    environment = run.environment
    found = list((staging / component.name).glob("*.whl"))
    if len(found) != 1:
        raise fail(
            "AW404",
            found=f"{len(found)} wheels of {component.name}",
            needed="exactly one",
            why="a cell that was asked for is produced or is an error",
            fix=f"see {run.folders[component.name] / 'build.log'}",
        )
    inspection = inspect_wheel(found[0])  # as everybody will see it: by its name alone
    if error := gate_error(inspection.findings, found[0].name):
        raise error
    toolkit = toolkit_of(component, run.target, environment, cann_for(component, run.target))
    version = wheel_version(component, run.target, run.gencodes, toolkit, run.options.device)
    for old in out.glob(f"{component.distribution.replace('-', '_')}-{version}-*.whl"):
        evidence_path(old, 1).unlink(missing_ok=True)
        if old.name != found[0].name:
            old.unlink()
    path = out / found[0].name
    with write_errors(path):
        shutil.move(found[0], path)
    write_freeze(frozen, freeze_path(out, frozen))
    toolchain = {"nvcc": environment.nvcc, "gcc": environment.gcc, "torch": environment.torch}
    toolchain["environment"] = environment.digest
    if inspection.subject.sources:
        lowered = lowered_in(read_manifest(path))
        return BuiltWheel(component.name, path, inspection.subject.wheel.sha256, path.stat().st_size, None, lowered)
    evidence = write_evidence(path, inspection.as_dict(), toolchain, frozen["digest"])
    return BuiltWheel(component.name, path, inspection.subject.wheel.sha256, path.stat().st_size, evidence)
