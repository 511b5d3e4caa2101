"""The real thing: four wheels from the real sources with the real compilers, installed into a clean environment.

Slow (minutes; a cold build with one gencode takes the better part of half an hour on two cores); marked `wheels`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from archwright.components import components
from archwright.environment import Environment, create_environment
from archwright.project import cache_dir, project_root
from archwright.targets import target_table

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(3400)]

ROOT = project_root()
STRAY = {
    "CUDA_HOME": "/usr/local/cuda-of-somebody-else",
    "NVCC_PREPEND_FLAGS": "-DSTRAY=1 -arch=sm_75",
    "CXX": "/usr/bin/false",
    "CPATH": "/nowhere/include",
    "LD_LIBRARY_PATH": "/nowhere/lib",
    "TORCH_CUDA_ARCH_LIST": "7.5",
}


def python_for(root: Path) -> str:
    """The tool's own Python has the tool of ROOT installed; the environment's has none, and everything it imports."""
    if root == ROOT:
        return sys.executable
    return str(create_environment(target_table().targets["sm100"]).toolchain / "bin" / "python")


def archwright(*words: str | Path, root: Path = ROOT, env: dict[str, str] | None = None, check: bool = True):
    run = subprocess.run(
        [python_for(root), "-m", "archwright", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(root / "python"), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=None if check else subprocess.PIPE,
        text=True,
        check=False,
    )
    assert not check or run.returncode == 0, run.stdout
    return run


@pytest.fixture(scope="session")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


@pytest.fixture(scope="session")
def wheels(environment: Environment) -> dict[str, Path]:
    """Build all four wheels with the command line, for one gencode, with stray variables set (case C4)."""
    stray = {name: value for name, value in STRAY.items() if name != "CXX"}
    run = archwright("build", "sm100", "--gencode", "sm_100a", env=stray)
    print(run.stdout)
    found = json.loads(archwright("build", "sm100", "--gencode", "sm_100a", "--json", env=stray).stdout)
    # the second run is a no-op: nothing was compiled again
    assert found["compiled"] == found["cached"] == 0
    return {wheel["component"]: Path(wheel["path"]) for wheel in found["wheels"]}


@pytest.fixture(scope="session")
def clean(environment: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python 3.12 environment with the runtime lock and the four wheels, and nothing else."""
    prefix = tmp_path_factory.mktemp("clean") / "env"
    python = prefix / "bin" / "python"
    uv = find_uv_bin()
    base = environment.toolchain / "bin" / "python"
    lock = ROOT / "envs" / "sm100" / "runtime.lock"
    strict = ("--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", lock)
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    for command in (
        (uv, "venv", "-q", "--python", os.path.realpath(base), prefix),
        (uv, "pip", "install", "-q", "--python", python, *strict),
        (uv, "pip", "install", "-q", "--python", python, "--no-deps", "--no-index", *wheels.values()),
    ):
        subprocess.run([str(word) for word in command], check=True, env=env)
    return prefix


def run_clean(prefix: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in the clean environment: no compiler on PATH, no variable of ours."""
    env = {"PATH": str(prefix / "bin"), "HOME": str(prefix), "LANG": "C.UTF-8", **variables}
    python = str(prefix / "bin" / "python")
    return subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=False, cwd=prefix)


def extension_of(wheel: Path, component: str, folder: Path) -> Path:
    pattern = components()[component].extension.replace(".", "/")
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(rf"{re.escape(pattern)}\.cpython-312-.*\.so", n))
        return Path(archive.extract(name, folder))


def test_names_say_toolkit_target_and_platform(wheels: dict[str, Path]) -> None:
    tag = r"cp312-cp312-manylinux_2_\d+_x86_64\.whl"
    expected = {
        "flash_mla": rf"deepinfer_flashmla-1\.0\.0\+cu132\.sm100\.sm100a-{tag}",
        "deep_gemm": rf"deepinfer_gemm-2\.8\.2\+cu132\.sm100-{tag}",
        "deep_ep": rf"deepinfer_ep-2\.5\.0\+cu132\.sm100-{tag}",
        "engine": rf"deepinfer-0\.1\.0\+cu132\.sm100-{tag}",
    }
    assert wheels.keys() == expected.keys()
    for component, pattern in expected.items():
        assert re.fullmatch(pattern, wheels[component].name), wheels[component].name


@pytest.mark.parametrize("component", ["flash_mla", "deep_gemm", "deep_ep", "engine"])
def test_dist_info_describes_the_build(wheels: dict[str, Path], component: str) -> None:
    with zipfile.ZipFile(wheels[component]) as archive:
        names = archive.namelist()
        info = next(n.partition("/")[0] for n in names if ".dist-info/" in n)
        record = json.loads(archive.read(f"{info}/archwright.json"))
        metadata = archive.read(f"{info}/METADATA").decode()
        rows = [line.rsplit(",", 2) for line in archive.read(f"{info}/RECORD").decode().splitlines()]
        assert {row[0].strip('"') for row in rows} == set(names)
    assert record["target"] == "sm100" and record["tier"] == "official"
    assert record["toolchain"]["nvcc"] == "13.2.86"
    assert record["claims"]["correct"].startswith("not verified here")
    assert "Requires-Dist: torch==2.13.*" in metadata  # case B1
    assert "License-File: LICENSE" in metadata and f"{info}/licenses/LICENSE" in names
    assert any(n.startswith(f"{info}/sboms/") and n.endswith(".cdx.json") for n in names)
    if component == "deep_ep":
        assert "Requires-Dist: nvidia-nccl-cu13>=2.32.3" in metadata


@pytest.mark.parametrize("component", ["flash_mla", "deep_gemm", "deep_ep", "engine"])
def test_no_path_of_the_build_machine(wheels: dict[str, Path], component: str, tmp_path: Path) -> None:
    data = extension_of(wheels[component], component, tmp_path).read_bytes()
    for path in (str(cache_dir()), str(ROOT), str(Path.home())):
        assert path.encode() + b"/" not in data


def test_sboms_are_valid(wheels: dict[str, Path]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            text = next(archive.read(n).decode() for n in archive.namelist() if n.endswith(".cdx.json"))
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_flash_mla_has_exactly_the_requested_arch(
    wheels: dict[str, Path], environment: Environment, tmp_path: Path
) -> None:
    """Case A4: every object of the wheel is for the requested architecture, and there is no PTX."""
    module = extension_of(wheels["flash_mla"], "flash_mla", tmp_path)
    cuobjdump = str(environment.toolkit / "bin" / "cuobjdump")
    elfs = subprocess.run([cuobjdump, "-lelf", module], capture_output=True, text=True, check=True).stdout
    arches = set(re.findall(r"\.(sm_\w+)\.cubin", elfs))
    assert arches == {"sm_100a"}
    assert elfs.count(".cubin") >= 29
    ptx = subprocess.run([cuobjdump, "-lptx", module], capture_output=True, text=True, check=False).stdout
    assert ".ptx" not in ptx


def test_every_figure_of_flash_mla_is_cuobjdumps(
    wheels: dict[str, Path], environment: Environment, tmp_path: Path
) -> None:
    module = extension_of(wheels["flash_mla"], "flash_mla", tmp_path)
    cuobjdump = str(environment.toolkit / "bin" / "cuobjdump")
    told = subprocess.run([cuobjdump, "-res-usage", module], capture_output=True, text=True, check=True).stdout
    pattern = r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+) (.*)"
    theirs = [
        (name, *map(int, figures), dict(sorted((b, int(n)) for b, n in re.findall(r"CONSTANT\[(\d+)\]:(\d+)", rest))))
        for name, *figures, rest in re.findall(pattern, told)
    ]
    (found,) = inspect(wheels["flash_mla"])["wheels"]
    mine = [
        (k["name"], k["registers"], k["stack"], k["shared"], k["local"], dict(sorted(k["constants"].items())))
        for k in found["kernels"]
    ]
    assert len(mine) > 60
    assert sorted(mine, key=str) == sorted(theirs, key=str)


def test_deep_gemm_carries_headers_and_stub(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["deep_gemm"]) as archive:
        names = set(archive.namelist())
        stub = archive.read("deep_gemm/_C.pyi").decode()
    assert {"deep_gemm/include/cute/tensor.hpp", "deep_gemm/include/cutlass/version.h", "deep_gemm/envs.py"} <= names
    assert "def get_mqa_logits_metadata(" in stub


def test_imports_stop_at_the_driver_with_our_message(clean: Path) -> None:
    """Without a driver: what calls it directly says so in our words, not in the loader's."""
    if run_clean(clean, "import ctypes; ctypes.CDLL('libcuda.so.1')").returncode == 0:
        pytest.skip("this machine has a driver")
    for code in ("import flash_mla", "import deepinfer; import deepinfer._C"):
        run = run_clean(clean, code)
        assert run.returncode != 0 and "AW601: no NVIDIA driver" in run.stderr, run.stderr
        assert "cannot open shared object file" not in run.stderr


def test_engine_package_imports_without_a_driver(clean: Path) -> None:
    run = run_clean(clean, "import deepinfer, deep_cluster; print(deepinfer.__version__)")
    assert run.stdout.strip() == "0.1.0", run.stderr


@pytest.mark.parametrize("module", ["deep_gemm._C", "deep_ep._C", "flash_mla.cuda", "deepinfer._C"])
def test_every_symbol_but_the_driver_is_there(
    clean: Path, environment: Environment, module: str, tmp_path: Path
) -> None:
    """Load each extension module itself beside torch: with a driver of empty functions, nothing else may be missing."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", *clean.glob(f"lib/python3.12/site-packages/{module.replace('.', '/')}.*.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions = set(re.findall(r" U (cu[A-Z]\w+)$", listed, re.M))
    driver = tmp_path / "libcuda.so.1"
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(functions))
    command = [environment.cc, "-shared", "-fPIC", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o", driver]
    subprocess.run([str(word) for word in command], input=source, text=True, check=True)
    code = (
        "import ctypes, glob, sys, torch;"
        f"ctypes.CDLL({str(driver)!r}, ctypes.RTLD_GLOBAL);"
        f"path, = glob.glob(sys.prefix + '/lib/python3.12/site-packages/{module.replace('.', '/')}.cpython-312-*.so');"
        "import importlib.util as u;"
        f"spec = u.spec_from_file_location({module!r}, path);"
        "spec.loader.exec_module(u.module_from_spec(spec)); print('loaded')"
    )
    run = run_clean(clean, code)
    assert run.stdout.strip() == "loaded", run.stderr


def test_metadata_is_read_without_torch(wheels: dict[str, Path], environment: Environment, tmp_path: Path) -> None:
    """Case C3: pip installs each wheel into an environment that has no torch."""
    python = environment.toolchain / "bin" / "python"
    command = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path, *wheels.values()]
    subprocess.run([str(word) for word in command], check=True)
    assert (tmp_path / "deep_ep" / "_archwright.json").is_file()


def test_pip_wheel_makes_the_same_wheel(wheels: dict[str, Path], environment: Environment, tmp_path: Path) -> None:
    """Without the command line tool, inside the environment: the same bytes."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        environment.toolchain / "bin" / "pip",
        "wheel",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        tmp_path,
    ]
    command += [ROOT / "csrc" / "deep_ep", "-C", "cmake.define.ARCHWRIGHT_TARGET=sm100"]
    subprocess.run([str(word) for word in command], check=True, env={**env, **STRAY})
    (made,) = tmp_path.glob("*.whl")
    assert made.name == wheels["deep_ep"].name
    assert hashlib.sha256(made.read_bytes()).digest() == hashlib.sha256(wheels["deep_ep"].read_bytes()).digest()


# ---------------------------------------------------------------------------------------------------- inspection


def inspect(*words: str | Path, check: bool = True) -> dict:
    run = archwright("inspect", "--json", *words, check=check)
    return json.loads(run.stdout)


def test_every_wheel_passes_inspection_and_has_evidence(wheels: dict[str, Path]) -> None:
    found = inspect(*wheels.values())
    assert found["passed"] and len(found["wheels"]) == 4
    shown = json.loads(archwright("targets", "sm100", "--json").stdout)["cells"]
    claims = {cell["component"]: [e["claim"] for e in cell["evidence"]] for cell in shown if cell["evidence"]}
    assert wheels.keys() <= claims.keys()  # packs that other tests made have evidence too
    assert {claim for each in claims.values() for claim in each} == {"compiles"}


def test_the_wheel_records_spills_and_instructions_of_every_kernel(wheels: dict[str, Path]) -> None:
    """upstream.md: with nvcc 13.2 two head64 decode kernels spill 20 bytes."""
    (found,) = inspect(wheels["flash_mla"])["wheels"]
    assert all(kernel["spill_stores"] is not None for kernel in found["kernels"])
    decode = [k for k in found["kernels"] if "head64" in k["name"] and "splitkv_mla_fp8" in k["name"]]
    assert sorted((k["spill_stores"], k["spill_loads"]) for k in decode) == [(0, 0), (0, 0), (20, 28), (20, 28)]
    assert all(k["instructions"]["tcgen05.mma"] and k["instructions"]["bulk copy"] for k in decode)


def doctored(wheel: Path, folder: Path, change: Callable[[dict[str, bytes]], None], *, mend: bool = True) -> Path:
    """A copy of `wheel` with its members changed; RECORD follows when `mend` is set, as a forger would do it."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    record = next(name for name in members if name.endswith(".dist-info/RECORD"))
    if mend:
        rows = []
        for name, data in members.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{record},," if name == record else f'"{name}",sha256={digest},{len(data)}')
        members[record] = "\n".join([*rows, ""]).encode()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / wheel.name, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return folder / wheel.name


@pytest.fixture(scope="session")
def library(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """A tiny real library with one kernel, by the environment's nvcc, for the gencodes that are asked for."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "k.cu").write_text('extern "C" __global__ void k(float *p) { p[threadIdx.x] *= 2; }\n')

    def build(*flags: str) -> bytes:
        command = [environment.toolkit / "bin" / "nvcc", "-ccbin", environment.cxx, "-shared", "-cudart", "shared"]
        command += ["-Xcompiler", "-fPIC,-fno-use-linker-plugin", f"-L{environment.toolkit / 'lib64'}", *flags]
        subprocess.run([*map(str, command), "k.cu", "-o", "k.so"], check=True, cwd=folder)
        return (folder / "k.so").read_bytes()

    return build


GENCODE = ("-gencode", "arch=compute_100a,code=sm_100a")
FORGED = {
    "one byte of the module": ("AW416", None),
    "a module without its kernels": ("AW418", GENCODE),
    "code for Hopper beside ours": ("AW411", (*GENCODE, "-gencode", "arch=compute_90a,code=sm_90a")),
    "PTX": ("AW412", (*GENCODE, "-gencode", "arch=compute_100a,code=compute_100a")),
    "relocatable device code": ("AW413", (*GENCODE, "-rdc=true")),
    "a run path": ("AW403", (*GENCODE, "-Xlinker", "-rpath,/opt/nccl/lib")),
}


@pytest.mark.parametrize(("code", "flags"), FORGED.values(), ids=FORGED)
def test_a_doctored_wheel_fails_with_the_right_code(
    code: str, flags: tuple[str, ...] | None, wheels: dict[str, Path], library: Callable[..., bytes], tmp_path: Path
) -> None:
    def change(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.endswith(".so"))
        members[name] = library(*flags) if flags else members[name][:-1] + bytes([members[name][-1] ^ 1])

    wheel = doctored(wheels["flash_mla"], tmp_path / "forged", change, mend=flags is not None)
    run = archwright("inspect", "--json", wheel, check=False)
    assert run.returncode == 1
    (found,) = json.loads(run.stdout)["wheels"]
    assert code in {finding["code"] for finding in found["findings"] if not finding["passed"]}


def test_f4_a_wheel_for_another_system_by_name_only(wheels: dict[str, Path], tmp_path: Path) -> None:
    renamed = tmp_path / re.sub(r"manylinux_2_\d+", "manylinux_2_28", wheels["flash_mla"].name)
    shutil.copy2(wheels["flash_mla"], renamed)
    found = inspect(renamed, check=False)["wheels"][0]["findings"]
    assert [finding["code"] for finding in found if not finding["passed"]] == ["AW414"]


def test_inspection_needs_no_cuda(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The tool's own environment, and nothing of CUDA on PATH."""
    run = archwright("inspect", "--json", wheels["flash_mla"], env={"PATH": "/usr/bin:/bin"})
    assert json.loads(run.stdout)["passed"]


def test_h2_two_builds_are_identical(wheels: dict[str, Path]) -> None:
    """Of the component that compiles fastest; the others by hand (docs/reproducibility.md)."""
    run = archwright("repro", "sm100", "deep_ep", "--json")
    found = json.loads(run.stdout)
    assert found["identical"]
    assert (
        found["first"]["sha256"]
        == found["second"]["sha256"]
        == hashlib.sha256(wheels["deep_ep"].read_bytes()).hexdigest()
    )


# ------------------------------------------------------------------------------- a copy of the project, to break


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project's files in a folder of their own, with nothing built."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    root = tmp_path / "project"
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    return root


def start_build(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python_for(root), "-m", "archwright", "build", "sm100", "deep_ep", "--no-compiler-cache", *words],
        env={**os.environ, "PYTHONPATH": str(root / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_in(root: Path) -> list[str]:
    """What runs with its working folder below `root`: Ninja and the compilers of that copy's builds."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(root):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_interrupted_build_resumes_and_second_build_is_told(copy: Path) -> None:
    """Cases D2 and D3: Ctrl-C ends everything, keeps what is finished and leaves no lock behind."""
    first = start_build(copy)
    lines = []
    for line in first.stdout:
        lines.append(line)
        if "driver.cpp" in line:
            break
    assert any("cc1plus" in command for command in processes_in(copy))
    second = archwright("build", "sm100", "deep_ep", "--no-wait", "--json", root=copy, check=False)
    assert second.returncode == 5
    assert json.loads(second.stdout)["error"]["code"] == "AW503"
    assert f"process {first.pid}" in json.loads(second.stdout)["error"]["found"]
    first.send_signal(signal.SIGINT)
    rest, _ = first.communicate(timeout=60)
    assert first.returncode == 130, "".join(lines) + rest
    assert "AW504" in rest
    time.sleep(0.5)
    assert not processes_in(copy)
    assert not list((copy / "dist" / "sm100").glob("*"))  # nothing half-written

    again = archwright("build", "sm100", "deep_ep", "--no-compiler-cache", "--json", root=copy)
    again = json.loads(again.stdout)
    assert again["up_to_date"] >= 1 and again["up_to_date"] + again["compiled"] == 3


def test_failing_command_is_shown(copy: Path) -> None:
    patch = copy / "csrc" / "deep_ep" / "patches" / "0002-broken.patch"
    source = "csrc/kernels/driver/driver.cpp"
    from archwright.sources import fetch

    first = (fetch(components()["deep_ep"]).path / source).read_text().splitlines()[0]
    patch.write_text(
        f"Break it\n\n--- a/{source}\n+++ b/{source}\n@@ -1,1 +1,2 @@\n+#error broken on purpose\n {first}\n"
    )
    run = archwright("build", "sm100", "deep_ep", "--json", root=copy, check=False)
    assert run.returncode == 5
    error = json.loads(run.stdout)["error"]
    assert error["code"] == "AW501"
    assert "driver.cpp" in error["found"] and "#error broken on purpose" in error["detail"]
    assert "g++" in error["detail"].splitlines()[0]


def test_offline_build_with_the_network_cut_off(wheels: dict[str, Path], copy: Path) -> None:
    """Case C2: no git and no network during a build."""
    probe = subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip("network name spaces are not permitted here")
    assert wheels
    run = subprocess.run(
        ["unshare", "-rn", python_for(copy), "-m", "archwright", "build", "sm100", "deep_ep", "--offline", "--json"],
        env={**os.environ, "PYTHONPATH": str(copy / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
