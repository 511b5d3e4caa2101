# /// script
# requires-python = ">=3.12"
# dependencies = ["nox==2026.10.20"]
# ///
"""Sessions of Archwright: each prepares the locked tool environment and calls the tool; none does its work.

    ./bootstrap nox                        the default sessions, in the environment of bootstrap (envs/dev.lock)
    python3 noxfile.py -s "build(sm100)"   one session, with nothing installed; `uv run noxfile.py` or `nox` do as well
    nox -t sm100                           all there is for one target
    nox -db uv                             another maker of environments: see BACKENDS

Outside bootstrap each session installs envs/dev.lock into an environment of its own, and uses it again as long as the
lock's digest is the same. The target's environment, with compilers and torch, is made by the tool from envs/<target>.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

try:
    import nox
except ImportError:  # a plain `python3 noxfile.py`: bootstrap has nox, from the lock
    os.execv(HERE / "bootstrap", ["bootstrap", "nox", *sys.argv[1:]])

#: What makes environments: the program that it needs; None comes with nox or Python.
BACKENDS = {
    **{name: name for name in ("conda", "mamba", "micromamba", "uv")},
    **dict.fromkeys(("rattler", "virtualenv", "venv", "none")),
}
BOOTSTRAPPED = Path(sys.prefix) == HERE / ".archwright" / "tool"
SOURCES = ("python", "csrc", "tests", "benchmarks", "noxfile.py")
MADE_FROM = ("envs/dev.lock", "pyproject.toml", "CMakeLists.txt")

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none" if BOOTSTRAPPED else "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = False
os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")

TARGETS = ("sm100", "sm90", "ascend950")
targets = nox.parametrize("target", [nox.param(name, id=name, tags=[name]) for name in TARGETS])


def explain_backend(words: list[str]) -> None:
    """Stop with a sentence when the backend that was asked for is not there: nox would show a traceback."""
    flags = ("-db", "--default-venv-backend", "-fb", "--force-venv-backend")
    asked = [word for flag, word in itertools.pairwise(words) if flag in flags]
    for name in asked or filter(None, [os.environ.get("NOX_DEFAULT_VENV_BACKEND")]):
        program = BACKENDS.get(name)
        if program and shutil.which(program) is None:
            here = [n for n, needed in BACKENDS.items() if needed is None or shutil.which(needed)]
            sys.exit(
                f"nox: the backend '{name}' needs the program `{program}`, which is not on PATH.\n"
                f"Here there are: {', '.join(here)} (`nox -db NAME`). ./bootstrap nox needs none of them."
            )


explain_backend(sys.argv)


def prepare(session: nox.Session) -> None:
    """Put the tool and what its sessions need into the session's environment, from the lock."""
    if session.venv_backend == "none":
        if shutil.which("archwright") is None:
            session.error("no tool in this environment: `./bootstrap nox ...`, or let nox make one (`nox -db uv`)")
        return
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in MADE_FROM)).hexdigest()
    stamp = Path(session.virtualenv.location) / "archwright.stamp"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    if stamp.is_file():  # of another lock: nothing of it may stay
        session.virtualenv.reuse_existing = False
        session.virtualenv.create()
    session.install("--require-hashes", "--no-deps", "--only-binary=:all:", "-r", "envs/dev.lock")
    session.install("--no-deps", "--no-index", "--no-build-isolation", "--editable", ".")
    stamp.write_text(digest)


def session(function=None, **options):  # type: ignore[no-untyped-def]
    """`nox.session` for Python 3.12."""
    return nox.session(function, python="3.12", **options)


@session
def lint(session: nox.Session) -> None:
    """Format and lint Python, C++ and CMake."""
    prepare(session)
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("ruff", "check", *SOURCES)
    session.run("gersemi", "--check", "CMakeLists.txt", "cmake", "csrc")


@session
def types(session: nox.Session) -> None:
    """Type-check the tool, strictly."""
    prepare(session)
    session.run("mypy")


@session
def tests(session: nox.Session) -> None:
    """Unit tests: no compiler beyond a few lines of C."""
    prepare(session)
    session.run("pytest", "-m", "not wheels", *session.posargs)


@session
def wheels(session: nox.Session) -> None:
    """Build the four real wheels for one gencode and install them into a clean environment."""
    prepare(session)
    session.run("pytest", "-m", "wheels", "-s", *session.posargs)


@session(default=False)
@targets
def build(session: nox.Session, target: str) -> None:
    """Build the target's wheels into dist/<target>/, in the locked environment. Options go after `--`."""
    prepare(session)
    session.run("archwright", "build", target, *session.posargs)


@session(default=False)
@targets
def inspect(session: nox.Session, target: str) -> None:
    """Check what is inside the target's wheels."""
    prepare(session)
    wheels = sorted(str(path) for path in (HERE / "dist" / target).glob("*.whl"))
    if not wheels:
        session.error(f'no wheels in dist/{target}: nox -s "build({target})" makes them')
    session.run("archwright", "inspect", *wheels, *session.posargs)


@session(default=False)
@targets
def aot(session: nox.Session, target: str) -> None:
    """Compile kernels ahead of time into dist/<target>/, without a GPU. Options go after `--`."""
    prepare(session)
    session.run("archwright", "aot", target, *session.posargs)


@session(default=False)
def repro(session: nox.Session) -> None:
    """Build a wheel twice and compare the bytes; `-- sm100 flash_mla` says which (default: the smallest)."""
    prepare(session)
    session.run("archwright", "repro", *(session.posargs or ["sm100", "deep_ep"]))


@session(default=False)
def lock(session: nox.Session) -> None:
    """Make every lock again from its input (needs the network)."""
    prepare(session)
    session.run("archwright", "env", "lock", *session.posargs)


@session(default=False)
def docs(session: nox.Session) -> None:
    """Check the documentation: links, a page for every error code, commands that exist."""
    prepare(session)
    session.run("pytest", "tests/test_docs.py", "tests/test_errors.py", *session.posargs)


@session(default=False)
def release(session: nox.Session) -> None:
    """Publish inspected wheels as an index."""
    prepare(session)
    session.error("`archwright release` does not exist yet: it comes with issue 8")


@session(default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of wheels and device code for a minute (or as `-- -max_total_time=N` says)."""
    prepare(session)
    session.run("python", "tests/fuzz/fuzz_device_code.py", *(session.posargs or ["-max_total_time=60"]))


@session(default=False)
def bench(session: nox.Session) -> None:
    """Compare our cold build with upstream's setup.py files (the better part of an hour)."""
    prepare(session)
    session.run("python", "benchmarks/build.py", *session.posargs)


if __name__ == "__main__":
    nox.main()
