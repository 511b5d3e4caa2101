"""Is a wheel reproducible? Two builds of one component under different circumstances, compared byte by byte.

Each build runs in its own copy of the project, as a child process. What differs between the two is asked of the builds'
own surroundings before they start, so nothing is called varied that was not:

    folder and length of its path, jobs, sources, environment, temporary and home folder, user name, time zone,
    language, umask; and inside a user namespace, where the system permits it: user id, host name and clock
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from .build import interruptible
from .components import Component
from .differences import Difference, compare_wheels
from .environment import Environment
from .errors import ArchwrightError, Exit, fail
from .indexes import Installer
from .interpreter import find_python
from .plan import available_cores, make_plan
from .project import cache_dir, project_root, require_space, write_errors
from .sources import fetch, sha256_of
from .surroundings import NotVaried, Surroundings, Variation, compare, other_surroundings, plain_surroundings
from .targets import Gencode, Target, Tier

__all__ = ["Rebuilt", "ReproResult", "check_reproducible", "copy_project"]

#: What a build reads of the project beside the package `archwright` itself.
_COPIED = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "csrc", "envs")
_TICK = 60.0  # seconds between two lines of news
_PATIENCE = 20.0  # a build ends its compilers within this time


@dataclass(frozen=True)
class Rebuilt:
    """The wheel of one build; `path` is None when it was not kept."""

    name: str
    sha256: str
    bytes: int
    path: Path | None


@dataclass(frozen=True)
class ReproResult:
    """Two builds and how they compare. `kept` is the folder with what is left of them; None when nothing is."""

    target: str
    component: str
    gencodes: tuple[str, ...]
    first: Rebuilt
    second: Rebuilt
    varied: tuple[Variation, ...]
    not_varied: tuple[NotVaried, ...]
    differences: tuple[Difference, ...]
    seconds: float
    kept: Path | None

    @property
    def identical(self) -> bool:
        return not self.differences

    def error(self) -> ArchwrightError | None:
        """AW421 when the wheels differ."""
        if self.identical:
            return None
        return fail(
            "AW421",
            found=f"two builds of {self.component} for {self.target} with sha256 {self.first.sha256[:16]}... and "
            f"{self.second.sha256[:16]}...: {len(self.differences)} differences",
            needed="the same bytes from the same sources, recipe and locked environment",
            why="nobody could rebuild such a wheel to check that it was made from its sources",
            fix=f"see the list below and the two wheels in {self.kept}; `diffoscope` shows every byte",
            detail="\n".join(map(str, self.differences)),
        )

    def as_dict(self) -> dict[str, Any]:
        error = self.error()
        return {
            **dataclasses.asdict(self),
            "identical": self.identical,
            **({"error": error.as_dict()} if error else {}),
        }


@dataclass(frozen=True)
class _Asked:
    """What is checked, and how its parts may be fetched."""

    target: Target
    component: Component
    gencodes: tuple[Gencode, ...]
    environment: Environment
    installer: Installer
    offline: bool
    news: Callable[[str], None]


@dataclass(frozen=True)
class _Build:
    """One of the two: the copy it is built in, with which environment, and in which surroundings."""

    number: int
    copy: Path
    environment: Environment
    jobs: int
    surroundings: Surroundings


@dataclass
class _Workplace:
    """The folder of one check. `keep` names what stays in it; what stays there after all is told as `kept`."""

    folder: Path
    keep: set[str] = field(default_factory=set)

    @property
    def kept(self) -> Path | None:
        return self.folder if self.keep else None


def check_reproducible(
    target: Target,
    component: Component,
    gencodes: tuple[Gencode, ...],
    environment: Environment,
    *,
    offline: bool = False,
    keep: bool = False,
    installer: Installer = Installer.UV,
    news: Callable[[str], None] = lambda message: None,
) -> ReproResult:
    """Build `component` twice and compare the wheels.

    The wheels stay when they differ, copies and logs when a build fails, all of it with `keep`. Raises what a build
    raises, and AW504 when interrupted: then nothing stays, neither files nor processes.
    """
    start = time.monotonic()
    asked = _Asked(target, component, gencodes, environment, installer, offline, news)
    fetch(component, offline=offline)
    with _workplace(f"{target.name}-{component.name}") as place, tempfile.TemporaryDirectory(prefix="aw-") as temporary:
        try:
            builds = _prepare(place.folder, Path(temporary), asked)
            varied, not_varied = compare(*((b.surroundings, b.environment, b.copy, b.jobs) for b in builds))
            wheels = [_build(place.folder, build, asked) for build in builds]
        except ArchwrightError as error:
            if error.exit is Exit.BUILD_FAILED:
                place.keep = {"1", "second", "logs"}
                news(f"kept: {place.folder}")
            raise
        news("comparing")
        differences = compare_wheels(wheels[0], wheels[1])
        place.keep = {"1", "second", "wheels", "logs"} if keep else {"wheels"} if differences else set()
        first, second = (Rebuilt(w.name, sha256_of(w), w.stat().st_size, w if place.keep else None) for w in wheels)
        return ReproResult(
            target=target.name,
            component=component.name,
            gencodes=tuple(g.name for g in gencodes),
            first=first,
            second=second,
            varied=varied,
            not_varied=not_varied,
            differences=differences,
            seconds=time.monotonic() - start,
            kept=place.kept,
        )


@contextmanager
def _workplace(name: str) -> Iterator[_Workplace]:
    """A folder for one check, in the cache: on the disk where environments and sources fit and can be hard-linked."""
    base = cache_dir() / "repro"
    with write_errors(base), interruptible():
        base.mkdir(exist_ok=True)
        place = _Workplace(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base)))
        try:
            yield place
        except KeyboardInterrupt:
            place.keep = set()
            raise fail(
                "AW504",
                found="the check was interrupted",
                needed="both builds to finish",
                why="half a comparison says nothing; nothing of it is kept, and no compiler is left running",
                fix="run the same command again: it starts from the beginning",
            ) from None
        finally:
            for path in place.folder.iterdir():
                if path.name not in place.keep:
                    _remove(path)
            with suppress(OSError):  # not empty: something is kept
                place.folder.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _prepare(work: Path, temporary: Path, asked: _Asked) -> tuple[_Build, _Build]:
    """Two copies of the project, a second cache with sources and environment of its own, and both surroundings."""
    require_space(work, 3 << 30, "two builds in folders of their own")
    for name in ("logs", "home", "wheels"):
        (work / name).mkdir()
    copies = (copy_project(work / "1"), copy_project(work / "second" / "copy-in-a-folder-with-a-longer-path"))
    cores = available_cores()
    plain = plain_surroundings(cache_dir())
    first = _Build(1, copies[0], asked.environment, 1, plain)
    asked.news("making a second environment and unpacking the sources a second time, in other folders")
    cache = _second_cache(work / "cache", asked.component)
    own = _make_second(work, cache, copies[1], asked)
    other = other_surroundings(cache, work / "home", temporary, own.cc)
    # on one core two jobs still take turns in another order than one does
    return first, _Build(2, copies[1], own, max(2, cores), other)


def copy_project(folder: Path) -> Path:
    """A copy of what a build reads, laid out like a checkout whether or not the tool is installed as a wheel.

    Uncommitted changes are in it; build folders and compiled Python are not.
    """
    package, root = Path(__file__).resolve().parent, project_root()
    ignore = shutil.ignore_patterns("__pycache__", "_project")
    shutil.copytree(package, folder / "python" / "archwright", symlinks=True, ignore=ignore)
    for source in (root / name for name in _COPIED):
        if source.is_dir():
            shutil.copytree(source, folder / source.name, symlinks=True, ignore=ignore)
        elif source.is_file():
            shutil.copy2(source, folder / source.name)
    (folder / "pyproject.toml").touch()  # with it a build's objects stay in the copy
    return folder


def _second_cache(cache: Path, component: Component) -> Path:
    """A cache that holds the source archive and reaches the provisioned compiler, and is empty otherwise.

    The compiler itself is not copied: its programs are bound to the folder in which they were unpacked.
    """
    first = cache_dir()
    (cache / "archives").mkdir(parents=True)
    archive = first / "archives" / f"{component.sha256}.tar.gz"
    if archive.is_file():
        shutil.copy2(archive, cache / "archives")
    if (first / "compilers").is_dir():
        (cache / "compilers").symlink_to(first / "compilers")
    return cache


def _make_second(work: Path, cache: Path, copy: Path, asked: _Asked) -> Environment:
    """Sources and environment in the second cache, made with the caller's own home, where installers keep packages."""
    python = str(asked.environment.toolchain / "bin" / "python")
    env = dict(os.environ) | {"ARCHWRIGHT_CACHE": str(cache), "PYTHONPATH": str(copy / "python")}
    network = ["--offline"] if asked.offline else []
    tool = [python, "-m", "archwright"]
    _ask([*tool, "fetch", asked.component.name, *network, "--json"], env, copy, work / "logs" / "fetch")
    how = ["--python", str(_interpreter(asked.environment)), "--installer", str(asked.installer)]
    create = [*tool, "env", "create", asked.target.name, *how, *network, "--json"]
    made = _ask(create, env, copy, work / "logs" / "environment")
    return Environment.load(Path(made["path"]) / "env.json")


def _interpreter(environment: Environment) -> Path:
    """The Python that the environment was made with: named, so that another home cannot lead to another one."""
    return find_python(str(environment.toolchain / "bin" / "python")).path


def _build(work: Path, build: _Build, asked: _Asked) -> Path:
    """Run `archwright build` of the copy's own code, with the toolchain's Python: the tool's has another installed."""
    out = work / "wheels" / str(build.number)
    plan = make_plan(asked.target, (asked.component,), asked.gencodes, jobs=build.jobs)
    files, title = plan.files, f"building {build.number} of 2"
    about = f"about {plan.estimate / 60:.0f} min" if plan.estimate >= 90 else f"about {plan.estimate:.0f} s"
    asked.news(f"{title} in {build.copy} (-j {build.jobs}, {files} files, {about})")
    command = [
        *build.surroundings.prefix,
        *(str(build.environment.toolchain / "bin" / "python"), "-m", "archwright"),
        *("build", asked.target.name, asked.component.name),
        *(word for gencode in asked.gencodes for word in ("--gencode", gencode.name)),
        *("--jobs", str(build.jobs), "--out", str(out), "--python", str(_interpreter(build.environment))),
        *(["--experimental"] if asked.target.tier is Tier.EXPERIMENTAL else []),
        *("--no-compiler-cache", "--offline", "--json"),
    ]
    env = build.surroundings.env | {"PYTHONPATH": str(build.copy / "python")}

    def tick() -> None:
        done = sum(1 for _ in (build.copy / "build").rglob("*.o"))
        asked.news(f"{title}: {min(done, files)} of {files} files compiled")

    log = work / "logs" / f"build-{build.number}"
    result = _ask(command, env, build.copy, log, umask=build.surroundings.umask, tick=tick)
    (wheel,) = result["wheels"]
    return Path(wheel["path"])


def _ask(
    command: list[str],
    env: dict[str, str],
    cwd: Path,
    log: Path,
    *,
    umask: int = -1,
    tick: Callable[[], None] = lambda: None,
) -> Any:
    """Run a command of ours with `--json` and return what it printed. Its error is raised as if it were ours."""
    answer, words = log.with_suffix(".json"), log.with_suffix(".log")
    with answer.open("wb") as out, words.open("wb") as err:
        child = subprocess.Popen(
            command, env=env, cwd=cwd, umask=umask, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    status = child.wait(_TICK)
                    break
                tick()
        except BaseException:
            _end(child)
            raise
    try:
        data = json.loads(answer.read_text(encoding="utf-8"))
    except ValueError:
        data = {}
    if status == 0 and data:
        return data
    if isinstance(data, dict) and "error" in data:
        raise ArchwrightError(
            **{key: data["error"][key] for key in ("code", "found", "needed", "why", "fix", "detail")}
        )
    raise fail(
        "AW501",
        found=f"`archwright {' '.join(command[command.index('archwright') + 1 :][:3])}` ended with status {status}",
        needed="status 0 and its result",
        why="one of the two builds is missing, so there is nothing to compare",
        fix=f"see {words}",
        detail=words.read_text(encoding="utf-8", errors="replace")[-3000:],
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a build and everything it started: politely first, since it ends its compilers itself."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_PATIENCE)
    with suppress(psutil.Error):
        family += psutil.Process(child.pid).children(recursive=True)
    if child.poll() is None:
        child.kill()
        child.wait()
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, timeout=5)
