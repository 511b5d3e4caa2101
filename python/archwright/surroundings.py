"""The circumstances of a build that must not change its result, and how two sets of them differ.

What can be varied depends on the machine: user id, host name and clock need a user namespace. So each side is asked by
a probe that runs exactly as its build will; only what the answers show counts as varied.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from .environment import Environment

__all__ = ["NotVaried", "Surroundings", "Variation", "compare", "other_surroundings", "plain_surroundings"]

_USER_ID = 12345
_SHIFT = 400 * 24 * 3600 + 7 * 3600 + 11 * 60  # another year, month, day and hour
_TIME_ZONE = "<+1345>-13:45"  # POSIX form: needs no time zone files

#: Runs as root of a new user namespace: names the host, and loads another clock into what starts after it.
_ENTER = """\
import os, socket, subprocess, sys
host, overlay, *command = sys.argv[1:]
socket.sethostname(host)
if overlay:
    mount = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={overlay}:/etc", "/etc"]
    subprocess.run(mount, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
os.execvp(command[0], command)
"""

#: What a build sees of its surroundings. The clock is the compiler's: that is whose time could end up in an object.
_PROBE = """\
import datetime, json, locale, os, socket, subprocess, sys, tempfile, time
def effective():
    try:
        return locale.setlocale(locale.LC_COLLATE, "")
    except locale.Error:
        return "C"
mask = os.umask(0)
env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
compiler = [sys.argv[1], "-x", "c++", "-E", "-P", "-"]
said = subprocess.run(compiler, input="__DATE__", env=env, capture_output=True, text=True, check=True).stdout
print(json.dumps({
    "folder": os.getcwd(),
    "cache and sources": os.environ["ARCHWRIGHT_CACHE"],
    "temporary folder": tempfile.gettempdir(),
    "home": os.path.expanduser("~"),
    "user name": os.environ.get("USER", "(not set)"),
    "user id": str(os.getuid()),
    "host name": socket.gethostname(),
    "clock": datetime.datetime.strptime(said.strip().strip('"'), "%b %d %Y").date().isoformat(),
    "time zone": time.strftime("%z"),
    "language": effective(),
    "umask": f"{mask:03o}",
}))
"""

#: What no setting of ours changes.
_SAME = (
    ("machine", "both builds run on this machine, its kernel, processor and file system"),
    ("tools", "compilers and locked packages are inputs: the same versions on purpose"),
    ("order of directory entries", "the file system decides it"),
)


@dataclass(frozen=True)
class Surroundings:
    """Variables, umask and the words in front of the command of one build. `refused` says what was not permitted."""

    env: dict[str, str]
    umask: int
    prefix: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Variation:
    what: str
    first: str
    second: str


@dataclass(frozen=True)
class NotVaried:
    what: str
    why: str


#: Surroundings, environment, working folder and jobs of one build.
Side = tuple[Surroundings, Environment, Path, int]


def plain_surroundings(cache: Path) -> Surroundings:
    """The caller's own, with the few settings fixed that would otherwise decide whether something is varied."""
    return Surroundings(_base() | {"ARCHWRIGHT_CACHE": str(cache), "LANG": "C", "TZ": "UTC0"}, 0o022)


def other_surroundings(cache: Path, home: Path, temporary: Path, cc: Path) -> Surroundings:
    """Everything different that this machine permits. `temporary` gets a short path: sockets lie in it."""
    env = _base() | {
        "ARCHWRIGHT_CACHE": str(cache),
        "HOME": str(home),
        "USER": "somebody",
        "LOGNAME": "somebody",
        "TMPDIR": str(temporary),
        "TZ": _TIME_ZONE,
        "LANG": _other_language(),
    }
    for name in [name for name in env if name.startswith("XDG_")]:
        del env[name]  # they would lead back to the first home
    overlay = _clock_overlay(temporary, cc)
    other = ("unshare", "--user", f"--map-user={_USER_ID}", f"--map-group={_USER_ID}")
    outer = ("unshare", "--user", "--map-root-user", "--uts", "--mount", sys.executable, "-I", "-c", _ENTER)
    prefix: tuple[str, ...] = ()
    for choice in ((*outer, "another-host", str(overlay or ""), *other), other):
        if not prefix and _runs(choice):
            prefix = choice
    namespace = "`unshare` is not installed" if shutil.which("unshare") is None else "the system permits no `unshare`"
    clock = "other_clock.c does not compile here" if overlay is None else "the system permits no `unshare` with mounts"
    refused = (("user id", namespace), ("host name", namespace), ("clock", clock), ("language", "no other one here"))
    return Surroundings(env, 0o077, prefix, refused)


def compare(first: Side, second: Side) -> tuple[tuple[Variation, ...], tuple[NotVaried, ...]]:
    """What differs between the surroundings of two builds, and what does not and why."""
    (ones, twos), reasons = (_facts(side) for side in (first, second)), dict(second[0].refused)
    varied, same = [], []
    for what, one in ones.items():
        two = twos[what]
        if _differs(what, one, two):
            varied.append(Variation(what, one, two))
        else:
            same.append(NotVaried(what, reasons.get(what, "it is the same in both builds")))
    compilers = [str(side[1].cxx.resolve()) for side in (first, second)]
    if compilers[0] == compilers[1]:
        same.append(NotVaried("folder of the host compiler", f"it is bound to where it is installed: {compilers[0]}"))
    return tuple(varied), (*same, *(NotVaried(*pair) for pair in _SAME))


def _facts(side: Side) -> dict[str, str]:
    surroundings, environment, folder, jobs = side
    python = str(environment.toolchain / "bin" / "python")
    answer = subprocess.run(
        [*surroundings.prefix, python, "-I", "-c", _PROBE, str(environment.cxx)],
        env=surroundings.env,
        cwd=folder,
        umask=surroundings.umask,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    facts: dict[str, str] = json.loads(answer)
    return {"folder": facts.pop("folder"), "environment": str(environment.path), "jobs": str(jobs), **facts}


def _differs(what: str, one: str, two: str) -> bool:
    if what == "clock":  # time zones alone can differ by a day
        return abs((date.fromisoformat(one) - date.fromisoformat(two)).days) > 2
    return one != two


def _base() -> dict[str, str]:
    """The caller's variables, without a language and settings of ours."""
    dropped = ("LC_", "LANG", "ARCHWRIGHT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _runs(prefix: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False


def _other_language() -> str:
    """An installed language that is neither C nor English, else any that is not plain C."""
    try:
        listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        listed = []
    others = [name for name in listed if name not in ("C", "POSIX")]
    return min(others, key=lambda name: (name.startswith(("C.", "en_")), name), default="C.UTF-8")


def _clock_overlay(temporary: Path, cc: Path) -> Path | None:
    """A folder to lay over /etc in which `ld.so.preload` names a clock that is ahead; None when it does not compile.

    LD_PRELOAD would not do: builds take it out of what their compilers see. This reaches every dynamic program.
    """
    overlay, clock = temporary / "etc", temporary / "clock.so"
    command = [str(cc), "-shared", "-fPIC", "-O2", f"-DSHIFT={_SHIFT}", "-o", str(clock)]
    source = Path(__file__).with_name("other_clock.c")
    try:
        subprocess.run([*command, str(source)], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    overlay.mkdir()
    present = Path("/etc/ld.so.preload")
    before = present.read_text() if present.is_file() else ""
    (overlay / "ld.so.preload").write_text(f"{before}\n{clock}\n")
    return overlay
