"""The simulated device with the real torch, and a real AOT pack of DeepGEMM used without any compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from archwright.aotcli import aot
from archwright.environment import Environment, create_environment
from archwright.errors import ArchwrightError
from archwright.evidence import write_evidence
from archwright.simulate import run_simulated, simulation
from archwright.targets import target_table

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parent.parent
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
    """DeepGEMM and its pack for a small shape file, installed into a folder."""
    folder = tmp_path_factory.mktemp("packs")
    shapes = folder / "small.toml"
    dimensions = {"hidden_size": 4096, "hc_mult": 4, "q_lora_rank": 1536, "num_attention_heads": 8, "head_dim": 512}
    dimensions |= {"n_routed_experts": 16, "moe_intermediate_size": 2048, "num_experts_per_tok": 2}
    dimensions |= {"expert_parallel_size": 8, "fp8_granularity": 32}
    lines = [f"{name} = {{ value = {value}, source = 'this test' }}" for name, value in dimensions.items()]
    shapes.write_text("\n".join(['schema = 1\nmodel = "small"\n[dimensions]', *lines, "[tokens]\nall = [1, 128]\n"]))
    command = ["archwright", "aot", "sm100", "deep_gemm_aot", "--shapes", str(shapes), "--out", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    library = next((ROOT / "dist" / "sm100").glob("deepinfer_gemm-*.whl"))
    wheels = [found["wheels"][0]["path"], str(library)]
    pip = [str(environment.toolchain / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), *wheels], check=True)
    return folder / "site"


CALL = """
import sys, torch, deep_gemm
deep_gemm.set_pdl(True)
def call(m, k):
    a = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(24, k, device="cuda", dtype=torch.float32)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, torch.empty(16, m, 24, device="cuda"), torch.empty(16, m, device="cuda"), 16)
for m in (1, 128):
    call(m, 16384)
print("hits")
if len(sys.argv) > 1:
    call(1, 8192)
"""


def use(environment: Environment, site: Path, tmp_path: Path, *words: str) -> tuple[int, str, list[str]]:
    """Call DeepGEMM with nothing on PATH and the pack alone; status, output and every program that was started."""
    (tmp_path / "home").mkdir()
    (tmp_path / "use.py").write_text(CALL)
    variables = {"HOME": str(tmp_path / "home"), "PATH": "/nonexistent", "PYTHONPATH": str(site)}
    variables |= {"ARCHWRIGHT_JIT": "strict"} | simulation("b200", environment)
    strace, trace = shutil.which("strace"), tmp_path / "trace"
    if strace is None:
        pytest.skip("strace is not installed: compiler processes could only be assumed")
    command = [strace, "-f", "-qq", "-e", "trace=execve", "-o", str(trace)]
    command += [str(environment.runtime / "bin" / "python"), str(tmp_path / "use.py"), *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    started = [line.split('"')[1] for line in trace.read_text().splitlines() if "execve(" in line and "= 0" in line]
    return done.returncode, done.stdout + done.stderr, started


def test_e1_with_the_pack_no_compiler_process_is_started(environment: Environment, site: Path, tmp_path: Path) -> None:
    status, said, started = use(environment, site, tmp_path)

    assert (status, said.splitlines()[-1]) == (0, "hits"), said
    stand_in = str(site / "archwright_aot_deep_gemm" / "toolkit" / "bin" / "nvcc")
    # upstream asks its compiler for the version, once; nothing else that could compile is started
    assert started.count(stand_in) == 1
    assert {Path(name).name for name in started} <= {"python", "sh", "ldconfig", "nvcc"}
    assert [name for name in started if name.endswith("nvcc")] == [stand_in]
    assert not list((tmp_path / "home" / ".dj").glob("cache/*"))


def test_e1_a_miss_names_kernel_and_command(environment: Environment, site: Path, tmp_path: Path) -> None:
    status, said, _ = use(environment, site, tmp_path, "miss")

    assert status != 0
    assert "hits" in said
    assert "AW607: kernel is not in the AOT pack" in said
    assert "sm100_tf32_hc_prenorm_gemm_impl< 24, 8192," in said
    assert "archwright aot sm100 deep_gemm_aot" in said
