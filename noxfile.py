"""Sessions of Archwright. `./bootstrap nox` runs the default ones; each calls the tool, none does its work.

Sessions use the environment that bootstrap made from envs/dev.lock (`venv_backend="none"`): nothing is installed here.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False

SOURCES = ("python", "csrc", "tests", "benchmarks", "noxfile.py")
LOCK = (
    *("uv", "pip", "compile", "--generate-hashes", "--no-emit-index-url", "--no-config", "--no-header", "--quiet"),
    *("--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.12", "--only-binary", ":all:"),
)


@nox.session
def lint(session: nox.Session) -> None:
    """Format and lint Python, C++ and CMake."""
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("ruff", "check", *SOURCES)
    session.run("gersemi", "--check", "CMakeLists.txt", "cmake", "csrc")


@nox.session
def types(session: nox.Session) -> None:
    """Type-check the tool, strictly."""
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests: seconds, no compiler beyond a few lines of C."""
    session.run("pytest", "-m", "not wheels", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the four real wheels for one gencode and install them into a clean environment."""
    session.run("pytest", "-m", "wheels", "-s", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of wheels and device code for a minute (or as `-- -max_total_time=N` says)."""
    session.run("python", "tests/fuzz/fuzz_device_code.py", *(session.posargs or ["-max_total_time=60"]))


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Regenerate every lock from its input (needs the network)."""
    session.chdir("envs")
    session.run(*LOCK, "dev.in", "-o", "dev.lock")
    session.run(*LOCK, "sm100/toolchain.in", "-o", "sm100/toolchain.lock")
    session.run(*LOCK, "sm100/runtime.in", "--override", "sm100/runtime.overrides", "-o", "sm100/runtime.lock")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Compare our cold build with upstream's setup.py files (the better part of an hour)."""
    session.run("python", "benchmarks/build.py", *session.posargs)
