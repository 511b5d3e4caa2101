"""The simulated device with the real torch, and the real AOT packs used without any compiler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from archwright.aotcli import aot
from archwright.components import Component, components
from archwright.environment import Environment, create_environment
from archwright.errors import ArchwrightError
from archwright.evidence import write_evidence
from archwright.packs import DEFAULT_SHAPES
from archwright.shapes import load_shapes
from archwright.simulate import run_simulated, simulation
from archwright.targets import target_table

from .alone import run_alone

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parent.parent
EVERY_CASE = Path(__file__).with_name("every_case.py")
PACKS = [component for component in components().values() if component.pack]
assert aot.name == "aot"


@pytest.fixture(scope="session")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


def python(environment: Environment, tmp_path: Path, code: str, device: str = "b200") -> tuple[int, str]:
    """Run `code` with torch under the device; status and what it printed."""
    script, out = tmp_path / "s.py", tmp_path / "out"
    script.write_text(f"import sys, torch\nsys.stdout = open({str(out)!r}, 'w')\n{code}\nsys.stdout.flush()\n")
    command = [str(environment.runtime / "bin" / "python"), str(script)]
    result = run_simulated(device, environment, command, tmp_path / "log")
    return result.status, out.read_text()


@pytest.mark.parametrize(("device", "sms", "major"), [("b200", 148, 10), ("h100", 132, 9)])
def test_torch_sees_the_device_and_its_marker(
    environment: Environment, tmp_path: Path, device: str, sms: int, major: int
) -> None:
    code = "p = torch.cuda.get_device_properties(0); print(p.name, p.multi_processor_count, p.major)"
    status, said = python(environment, tmp_path, code, device)
    assert status == 0
    assert "(simulated by Archwright)" in said
    assert said.split()[-2:] == [str(sms), str(major)]


def test_copies_are_real_and_operations_are_not(environment: Environment, tmp_path: Path) -> None:
    code = (
        "x = torch.arange(1000).cuda(); print((x.cpu() == torch.arange(1000)).all().item())\n"
        "print((x + 1).shape, (torch.zeros(64, 64).cuda() @ torch.zeros(64, 64).cuda()).shape)\n"
        "e = torch.cuda.Event(enable_timing=True); f = torch.cuda.Event(enable_timing=True)\n"
        "e.record(); f.record(); torch.cuda.synchronize(); print(e.elapsed_time(f) > 0)\n"
        "print(torch.zeros(1 << 30, device='cuda')[:4].cpu().tolist())\n"
    )
    status, said = python(environment, tmp_path, code)
    assert status == 0
    lines = said.splitlines()
    assert lines[0] == lines[2] == "True"
    assert lines[3] == "[0.0, 0.0, 0.0, 0.0]"


def test_memory_ends_where_the_devices_does(environment: Environment, tmp_path: Path) -> None:
    code = (
        "try:\n    torch.empty(1 << 38, device='cuda', dtype=torch.uint8)\n"
        "except torch.OutOfMemoryError as error:\n    print('out of memory')\n"
    )
    assert python(environment, tmp_path, code) == (0, "out of memory\n")


def test_what_is_outside_the_scope_ends_the_process_by_name(environment: Environment, tmp_path: Path) -> None:
    code = "import ctypes; ctypes.CDLL('libcudart.so.13').cudaMallocManaged(None, 1, 1)"
    with pytest.raises(ArchwrightError) as caught:
        python(environment, tmp_path, code)
    assert caught.value.code == "AW704"
    assert caught.value.found == "cudaMallocManaged"


def test_a_truncated_cubin_is_no_image(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); h = ctypes.c_void_p()\n"
        f"print(cuda.cuLibraryLoadFromFile(ctypes.byref(h), b'{tmp_path}/k.cubin', 0, 0, 0, 0, 0, 0))\n"
    )
    (tmp_path / "k.cubin").write_bytes(b"\x7fELF\x02\x01" + bytes(100))
    assert python(environment, tmp_path, code) == (0, "200\n")  # CUDA_ERROR_INVALID_IMAGE


def test_children_without_cuda_are_not_disturbed(environment: Environment) -> None:
    variables = os.environ | simulation("b200", environment)
    for command in (["/bin/sh", "-c", "echo ok"], [environment.cxx, "--version"]):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout
        assert done.stderr == ""


def test_no_evidence_above_level_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARCHWRIGHT_SIMULATED_DEVICE", "b200")
    with pytest.raises(ArchwrightError) as caught:
        write_evidence(tmp_path / "w.whl", {"passed": True, "wheel": "w.whl"}, {}, "", level=2, claim="correct")
    assert caught.value.code == "AW705"


@pytest.fixture(scope="session")
def site(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every pack with the libraries that it is for, made for the shipped shapes and installed into one folder."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        ["archwright", "aot", "sm100", "--json"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    packs = [found["path"] for found in json.loads(done.stdout)["wheels"]]
    assert len(packs) == len(PACKS)
    libraries = {components()[pack.library].distribution for c in PACKS if (pack := c.pack)}
    wheels = [str(newest(ROOT / "dist" / "sm100", name.replace("-", "_"))) for name in libraries]
    pip = [str(environment.toolchain / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), *packs, *wheels], check=True)
    return folder


def newest(folder: Path, name: str) -> Path:
    return max(folder.glob(f"{name}-*+cu*.sm100-*.whl"), key=lambda wheel: wheel.stat().st_mtime)


@pytest.mark.parametrize(
    # those of a group of ranks have tests of their own: tests/test_real_deep_ep.py
    "component",
    [component for component in PACKS if component.pack and not component.pack.nccl],
    ids=lambda component: component.name,
)
def test_e1_with_the_packs_every_shape_is_a_hit_and_no_compiler_is_started(
    environment: Environment, site: Path, tmp_path: Path, component: Component
) -> None:
    assert component.pack is not None
    operations = [op.name for op in component.pack.operations if "sm100" in op.targets]
    facts = {"component": component.name, "cases": component.pack.cases[0], "operations": operations}
    (tmp_path / "facts.json").write_text(json.dumps(facts | load_shapes(DEFAULT_SHAPES).as_dict()))

    used = run_alone(environment, site, tmp_path, str(EVERY_CASE), str(ROOT / "csrc"), str(tmp_path / "facts.json"))

    assert used.status == 0, used.said
    manifest = json.loads((site / component.package / "manifest.json").read_text())
    cases = sum(len(op["cases"]) for op in manifest["operations"] if op["name"] in operations)
    assert f"{cases} cases" in used.said.splitlines()
    # upstream asks its compiler for the version, once; nothing else that could compile is started
    assert {Path(name).name for name in used.started} <= {"python", "sh", "ldconfig", "nvcc"}
    compilers = [name for name in used.started if name.endswith("nvcc")]
    assert len(compilers) <= 1
    assert all(name.startswith(str(site)) for name in compilers)
    kept = [path for name in ("cubin", "so", "cu") for path in (tmp_path / "home").rglob(f"*.{name}")]
    assert not kept, "nothing was compiled into the user's own cache"


DEEP_GEMM = """
import torch, deep_gemm
deep_gemm.set_pdl(True)
a = torch.empty(1, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.empty(24, 8192, device="cuda", dtype=torch.float32)
deep_gemm.tf32_hc_prenorm_gemm(a, b, torch.empty(16, 1, 24, device="cuda"), torch.empty(16, 1, device="cuda"), 16)
"""
TILELANG = """
import tilelang, torch, tile_kernels
x = torch.empty(4, 1024, device="cuda", dtype=torch.bfloat16)
tile_kernels.quant.swiglu_forward(x, "bf16")
"""


@pytest.mark.parametrize(
    ("code", "kernel", "command"),
    [
        (DEEP_GEMM, "sm100_tf32_hc_prenorm_gemm_impl< 24, 8192,", "archwright aot sm100 deep_gemm_aot"),
        (TILELANG, "swiglu", "archwright aot sm100 tilelang_ops"),
    ],
    ids=["deep_gemm", "tilelang"],
)
def test_e1_a_miss_names_kernel_and_command(
    environment: Environment, site: Path, tmp_path: Path, code: str, kernel: str, command: str
) -> None:
    used = run_alone(environment, site, tmp_path, "-c", code)

    assert used.status != 0
    for words in ("AW607: kernel is not in the AOT pack", kernel, command):
        assert words in used.said


def test_e1_without_the_pack_the_library_says_what_is_missing(
    environment: Environment, site: Path, tmp_path: Path
) -> None:
    for name in ("deep_gemm", "deepinfer_gemm-*.dist-info"):
        found = next(site.glob(name))
        (tmp_path / found.name).symlink_to(found)

    used = run_alone(environment, tmp_path, tmp_path, "-c", DEEP_GEMM)

    assert used.status != 0
    assert "AW609: neither an AOT pack nor a compiler" in used.said
    assert "no archwright-aot-deep-gemm in this environment" in used.said
