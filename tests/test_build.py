"""Building with a stand-in for the toolchain's Python: what its children see, and how failures and Ctrl-C end (D2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import backend, launcher
from archwright.build import BuildOptions, BuildResult, Observer, build_wheels
from archwright.components import Component
from archwright.environment import Environment
from archwright.errors import ArchwrightError, Exit
from archwright.measured import Toolchain, measured_units
from archwright.plan import make_plan
from archwright.sources import sha256_of
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]
WHEEL = "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_39_x86_64.whl"

pytestmark = pytest.mark.usefixtures("pip_answers_at_once")

#: Answers `python -m pip wheel ... --wheel-dir DIR ...`: compiles one unit through the launcher and writes a wheel.
PYTHON = f"""\
all="$*"
while [ $# -gt 0 ]; do case "$1" in --wheel-dir) dir=$2 ;; esac; shift; done
env >"$TRACE.env"
echo "$all" >"$TRACE.command"
echo "building the wheel"
if [ -n "$UNIT" ]; then
    {sys.executable} -I -S {launcher.__file__} sh "$COMPILER" -c "$UNIT"
    status=$?
    sleep 0.2  # linking and packing take longer than this
    [ $status = 0 ] || exit 1
fi
mkdir -p "$dir"
for name in ${{WHEELS-{WHEEL}}}; do cp "$MADE" "$dir/$name"; done
exit ${{STATUS-0}}
"""


@pytest.fixture
def toolchain(
    environment: Environment,
    tiny: Component,
    make_wheel: Callable[..., Path],
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The stand-in in the environment's toolchain; returns the prefix of the files in which it notes what it saw."""
    python = environment.toolchain / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{PYTHON}")
    python.chmod(0o755)
    monkeypatch.setattr(backend, "project_root", lambda: tmp_path / "project")
    monkeypatch.setattr("archwright.build.require_space", lambda *words: None)
    monkeypatch.setattr("archwright.inspection.components", lambda: {"tiny": tiny})
    monkeypatch.setenv("MADE", str(make_wheel(tmp_path / WHEEL)))
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    monkeypatch.delenv("UNIT", raising=False)
    return tmp_path / "trace"


Build = Callable[..., BuildResult]


@pytest.fixture
def build(toolchain: Path, tiny: Component, environment: Environment, tmp_path: Path) -> Build:
    def call(observer: Observer | None = None, **options: object) -> BuildResult:
        plan = make_plan(SM100, (tiny,), SM100.gencodes, jobs=2, memory_mib=1000)
        out = tmp_path / "out"
        chosen = BuildOptions(**options)  # type: ignore[arg-type]
        return build_wheels(SM100, (tiny,), SM100.gencodes, environment, plan, out, chosen, observer or Observer())

    return call


def seen(trace: Path) -> dict[str, str]:
    lines = Path(f"{trace}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def error_of(build: Build, **options: object) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        build(**options)
    return caught.value


def test_a_wheel_is_moved_into_place_with_its_hash(build: Build, tmp_path: Path) -> None:
    result = build()

    (wheel,) = result.wheels
    assert wheel.path == tmp_path / "out" / WHEEL
    assert wheel.sha256 == sha256_of(wheel.path)
    assert wheel.bytes == (tmp_path / WHEEL).stat().st_size
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["evidence", WHEEL], "nothing else is left in dist"
    assert json.dumps(result.as_dict(), default=str)


def test_level_1_evidence_is_written_for_a_wheel_that_passed(build: Build, tmp_path: Path) -> None:
    (wheel,) = build().wheels

    record = json.loads(wheel.evidence.read_text())
    assert wheel.evidence == tmp_path / "out" / "evidence" / f"{WHEEL}.level1.json"
    assert (record["level"], record["claim"], record["wheel"]) == (1, "compiles", WHEEL)
    assert record["sha256"] == sha256_of(wheel.path)
    assert "AW418" in record["gates"]
    assert any(text.startswith("correct") for text in record["not_verified"])


def test_a_wheel_that_does_not_pass_replaces_nothing_and_leaves_no_evidence(
    build: Build, make_wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = build().wheels
    before = good.path.read_bytes(), good.evidence.read_bytes()

    (tmp_path / "bad").mkdir()
    monkeypatch.setenv("MADE", str(make_wheel(tmp_path / "bad" / WHEEL, tamper=b"x")))

    assert error_of(build).code == "AW416"
    assert (good.path.read_bytes(), good.evidence.read_bytes()) == before


def test_the_command_is_the_one_that_is_documented(build: Build, toolchain: Path, tiny: Component) -> None:
    build()
    command = Path(f"{toolchain}.command").read_text().split()
    assert command[:3] == ["-m", "pip", "wheel"]
    assert {"--no-build-isolation", "--no-deps", "--no-index", str(tiny.folder)} <= set(command)
    assert "cmake.define.ARCHWRIGHT_TARGET=sm100" in command
    assert "cmake.define.ARCHWRIGHT_GENCODES=sm_100a,sm_103a" in command


def test_c4_stray_variables_do_not_reach_the_build(
    build: Build, toolchain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "NVCC_PREPEND_FLAGS", "CXX", "CPATH", "LD_LIBRARY_PATH", "CFLAGS", "PYTHONPATH"):
        monkeypatch.setenv(name, "/stray")
    build()
    assert "/stray" not in seen(toolchain).values()


def test_c2_offline_is_handed_on_and_pip_has_no_index(build: Build, toolchain: Path) -> None:
    build()
    assert "ARCHWRIGHT_OFFLINE" not in seen(toolchain)
    assert seen(toolchain)["PIP_CONFIG_FILE"] == os.devnull

    build(offline=True)
    assert seen(toolchain)["ARCHWRIGHT_OFFLINE"] == "1"


def test_c2_offline_with_an_empty_cache_stops_before_anything(build: Build, toolchain: Path) -> None:
    assert error_of(build, offline=True).code == "AW207"
    assert not Path(f"{toolchain}.command").exists()


@pytest.mark.parametrize("wheels", ["", f"{WHEEL} second-1.0-py3-none-any.whl"])
def test_aw404_no_wheel_is_an_error_and_not_a_success(
    wheels: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEELS", wheels)
    error = error_of(build)
    assert error.code == "AW404"
    assert error.exit is Exit.BUILD_FAILED
    assert list((tmp_path / "out").iterdir()) == []


def test_an_earlier_wheel_of_the_same_version_goes_and_others_stay(build: Build, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    older = out / "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_34_x86_64.whl"
    for name in (older.name, "tiny-1.0+cu131.sm100-cp312-cp312-linux_x86_64.whl", "other-1.0-py3-none-any.whl"):
        (out / name).touch()

    build()

    assert not older.exists()
    assert len(list(out.glob("*.whl"))) == 3


def test_a_failing_step_is_aw501_with_its_log(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATUS", "2")
    error = error_of(build)
    assert error.code == "AW501"
    assert "building the wheel" in error.detail
    assert "status 2" in error.found
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def unit(tiny: Component, toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the build compile the tiny library's one unit with a "compiler" that does what it is told."""
    from archwright.sources import fetch

    def compile_with(script: str) -> None:
        compiler = tmp_path / "compiler.sh"
        compiler.write_text(script)
        monkeypatch.setenv("COMPILER", str(compiler))
        monkeypatch.setenv("UNIT", str(fetch(tiny).path / "csrc" / "api.cpp"))

    return compile_with


@pytest.mark.parametrize(
    ("script", "counts"),
    [("true", (1, 0, 0)), ('echo direct_cache_hit >"$CCACHE_STATSLOG"', (0, 1, 0))],
    ids=["compiled", "cached"],
)
def test_compiles_are_counted_and_reported(
    script: str, counts: tuple[int, int, int], build: Build, unit: Callable[[str], None]
) -> None:
    """ccache says itself whether it answered."""
    unit(script)
    reported: list[str] = []

    result = build(Observer(done=lambda measured: reported.append(Path(measured.source).name)))

    assert (result.compiled, result.cached, result.up_to_date) == counts
    assert reported == ["api.cpp"]


def test_what_needs_no_compile_is_up_to_date(build: Build) -> None:
    result = build()
    assert (result.compiled, result.cached, result.up_to_date) == (0, 0, 1)


def test_a_compile_error_shows_the_one_command(build: Build, unit: Callable[[str], None], tmp_path: Path) -> None:
    unit("echo 'api.cpp:1: error: bad' >&2; exit 1")
    error = error_of(build)
    assert error.code == "AW501"
    assert "api.cpp" in error.found
    assert "compiler.sh -c" in error.detail
    assert "error: bad" in error.detail
    assert list((tmp_path / "out").iterdir()) == []


def test_d1_a_killed_compiler_is_aw502(build: Build, unit: Callable[[str], None]) -> None:
    unit("kill -9 $$")
    error = error_of(build)
    assert error.code == "AW502"
    assert "retried alone" in error.found


def test_d1_a_compiler_that_was_killed_once_is_retried_and_reported(
    build: Build, unit: Callable[[str], None], tmp_path: Path
) -> None:
    unit(f"if [ ! -e {tmp_path}/died ]; then touch {tmp_path}/died; kill -9 $$; fi")
    news: list[str] = []

    result = build(Observer(news=news.append))

    assert result.retried == ("tiny: csrc/api.cpp",)
    assert (len(result.wheels), result.compiled) == (1, 1)
    assert any("api.cpp was killed" in line and "alone" in line for line in news)


def test_a_failure_is_told_at_once(build: Build, unit: Callable[[str], None]) -> None:
    unit("exit 1")
    news: list[str] = []
    with pytest.raises(ArchwrightError):
        build(Observer(news=news.append))
    assert news == ["api.cpp failed"]


def test_d1_what_was_compiled_is_recorded_for_the_next_plan(
    build: Build,
    unit: Callable[[str], None],
    tiny: Component,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the build fails afterwards, too."""
    toolchain = Toolchain.of(environment, SM100.gencodes)
    unit('echo direct_cache_hit >"$CCACHE_STATSLOG"')
    build()
    assert measured_units(tiny, toolchain) == {}

    unit("sleep 0.3")
    monkeypatch.setenv("STATUS", "1")
    error_of(build)
    assert measured_units(tiny, toolchain)["csrc/api.cpp"].seconds >= 0.3


def test_after_a_failure_the_same_command_works(build: Build, unit: Callable[[str], None]) -> None:
    unit("exit 1")
    assert error_of(build).code == "AW501"
    unit("true")
    assert len(build().wheels) == 1


SCRIPT = """
import json, pathlib, sys
import archwright.backend, archwright.build
import archwright.components as components
from archwright.environment import Environment
from archwright.errors import ArchwrightError
from archwright.plan import make_plan
from archwright.targets import target_table
recipe, record, out = map(pathlib.Path, sys.argv[1:])
components.project_root = archwright.backend.project_root = lambda: recipe.parents[2]
archwright.build.require_space = lambda *words: None
component = components._load(recipe)
target = target_table().targets["sm100"]
plan = make_plan(target, (component,), target.gencodes, jobs=1, memory_mib=1000)
try:
    archwright.build.build_wheels(target, (component,), target.gencodes, Environment.load(record), plan, out)
except ArchwrightError as error:
    print(error.code)
    sys.exit(int(error.exit))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_d2_interrupted_it_ends_its_compilers_and_a_rerun_works(
    number: signal.Signals,
    build: Build,
    unit: Callable[[str], None],
    tiny: Component,
    environment: Environment,
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    unit(f"echo $$ >{pids}; exec sleep 100")
    record = tmp_path / "env.json"
    record.write_text(json.dumps(environment.as_dict()))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tiny.folder / "component.toml", record, out], stdout=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not (pids.exists() and pids.read_text().strip()):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    compiler = int(pids.read_text())

    process.send_signal(number)
    output, _ = process.communicate(timeout=30)

    assert process.returncode == Exit.INTERRUPTED == 130
    assert output == "AW504\n"
    assert list(out.iterdir()) == [], "neither a wheel nor a staging folder"
    end = time.monotonic() + 5
    while Path(f"/proc/{compiler}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{compiler}").exists(), "no compiler is left behind"

    unit("true")
    assert len(build(wait=False).wheels) == 1, "and no lock"


def test_d3_a_second_build_of_the_cell_does_not_wait_when_told(build: Build, tmp_path: Path, tiny: Component) -> None:
    from archwright.cellock import cell_lock

    folder = backend.build_folder(tiny, SM100, SM100.gencodes)
    with cell_lock(folder):
        error = error_of(build, wait=False)
    assert error.code == "AW503"
    assert f"process {os.getpid()}" in error.found


def test_c5_a_full_disk_at_the_end_is_aw308(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import errno

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr("shutil.move", full)
    assert error_of(build).code == "AW308"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_is_blamed_on_the_component_whose_file_it_was(
    build: Build, unit: Callable[[str], None], tiny: Component, environment: Environment, tmp_path: Path
) -> None:
    """When one compile fails the other components end too, and often before the one that is to blame."""
    unit("exit 3")
    python = environment.toolchain / "bin" / "python"
    failed = tmp_path / "failed"
    python.write_text(
        '#!/bin/sh\ncase "$*" in */another*) while [ ! -e '
        + str(failed)
        + " ]; do sleep 0.05; done; exit 1 ;; esac\n"
        + PYTHON.replace("status=$?", f"status=$?; sleep 0.3; touch {failed}; sleep 1")
    )
    other = replace(tiny, name="another")
    plan = make_plan(SM100, (tiny, other), SM100.gencodes, jobs=1, memory_mib=1000)

    with pytest.raises(ArchwrightError) as caught:
        build_wheels(SM100, (other, tiny), SM100.gencodes, environment, plan, tmp_path / "out")

    assert caught.value.code == "AW501"
    assert "api.cpp" in caught.value.found
    assert "of tiny" in caught.value.found
    assert "/tiny/build.log" in caught.value.fix
