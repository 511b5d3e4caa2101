"""The simulated device, function by function: what a program is told, and what it can call."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from archwright.cubin import read_cubin
from archwright.devices import find_device
from archwright.environment import Environment, create_environment
from archwright.errors import ArchwrightError
from archwright.simulate import build_stand_ins
from archwright.targets import target_table

from .alone import call_stand_ins

pytestmark = pytest.mark.wheels

#: Attributes that are zero: identity (PCI), and capabilities that are not implemented, so that no program relies on
#: them. Everything else is a size or a count, by which programs divide.
ZERO = {17, 18, 20, 33, 34, 35, 50, 83, 84, 85, 86, 88, 89, *range(92, 95), 96, 98, 100, 101, 104, 105}
ZERO |= {107, *range(112, 115), *range(116, 120), *range(121, 126), *range(127, 148), 44}

BEGIN = """
import ctypes, json
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
out, value = [], ctypes.c_int()
place, size = ctypes.c_void_p(), ctypes.c_size_t()
def ref(x): return ctypes.byref(x)
"""


@pytest.fixture(scope="session")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


def called(environment: Environment, tmp_path: Path, code: str, device: str = "b200", count: int = 1) -> list[object]:
    return call_stand_ins(environment, tmp_path, BEGIN + code, device, count)


def records(tmp_path: Path) -> list[dict[str, Any]]:
    lines = [line for path in (tmp_path / "log").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("device", ["b200", "h100", "b300"])
def test_no_size_or_count_is_zero(environment: Environment, tmp_path: Path, device: str) -> None:
    code = (
        "for number in range(1, 148):\n"
        "    assert runtime.cudaDeviceGetAttribute(ref(value), number, 0) == 0\n"
        "    out.append(value.value)\n"
    )
    values = dict(enumerate(called(environment, tmp_path, code, device), 1))

    minor = values.pop(76)
    assert minor == int(find_device(device).capability[-1])
    assert {number for number, value in values.items() if value == 0} == ZERO
    figures = find_device(device).figures
    assert values[16] == figures["sms"]
    assert values[11] == figures["pitch_bytes"]
    assert values[87] == (64 if device == "b300" else 2)


def test_driver_functions_are_linked_by_name(environment: Environment, tmp_path: Path) -> None:
    code = (
        "text = ctypes.c_char_p()\n"
        "out.append(driver.cuMemAlloc_v2(ref(place), ctypes.c_size_t(4096)))\n"
        "out += [driver.cuMemFree_v2(place), driver.cuMemFree_v2(place)]\n"
        "driver.cuGetErrorString(2, ref(text)); out.append(text.value.decode())\n"
        "out.append(driver.cuMemAlloc_v2(ref(place), ctypes.c_size_t(1 << 40)))\n"
    )
    assert called(environment, tmp_path, code) == [0, 0, 1, "CUDA_ERROR_OUT_OF_MEMORY", 2]


def test_mapped_host_memory_has_one_address(environment: Environment, tmp_path: Path) -> None:
    code = (
        "there = ctypes.c_void_p()\n"
        "assert runtime.cudaHostAlloc(ref(place), ctypes.c_size_t(4096), 2) == 0\n"
        "out.append(runtime.cudaHostGetDevicePointer(ref(there), place, 0))\n"
        "out.append(there.value == place.value)\n"
    )
    assert called(environment, tmp_path, code) == [0, True]


GRAPH = """
import torch
graph, source = torch.cuda.CUDAGraph(), torch.arange(4.0).pin_memory()
here = torch.full((4,), 7.0).cuda()
with torch.cuda.graph(graph):
    here.copy_(source, non_blocking=True)
    torch.add(here, here)
out.append(here.cpu().tolist())
graph.replay()
out.append(here.cpu().tolist())
source += 1
graph.replay()
out.append(here.cpu().tolist())
"""


def test_a_graph_does_its_work_at_each_replay_and_not_before(environment: Environment, tmp_path: Path) -> None:
    values = called(environment, tmp_path, GRAPH)

    assert values == [[7.0] * 4, [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
    # the two ends of the addition's two executions; the capture itself ran nothing
    events = [record["event"] for record in records(tmp_path)]
    first = events.index("graph launch")
    assert events.count("graph launch") == 2
    assert events[first + 1 : first + 4] == ["launch", "graph launch", "launch"]


def test_a_captured_host_callback_is_called_by_the_graph(environment: Environment, tmp_path: Path) -> None:
    code = (
        "stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()\n"
        "callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: out.append('called'))\n"
        "runtime.cudaStreamCreate(ref(stream)); runtime.cudaLaunchHostFunc(stream, callback, None)\n"
        "runtime.cudaStreamBeginCapture(stream, 0); runtime.cudaLaunchHostFunc(stream, callback, None)\n"
        "out.append(runtime.cudaStreamSynchronize(stream))\n"
        "runtime.cudaStreamEndCapture(stream, ref(graph)); out.append('captured')\n"
        "runtime.cudaGraphInstantiate(ref(executable), graph, ctypes.c_ulonglong())\n"
        "runtime.cudaGraphGetNodes(graph, None, ref(size)); out.append(size.value)\n"
        "out.append(runtime.cudaGraphLaunch(executable, stream))\n"
        "runtime.cudaGraphExecDestroy(executable); out.append(runtime.cudaGraphLaunch(executable, stream))\n"
    )
    not_permitted, invalid = 900, 1
    assert called(environment, tmp_path, code) == ["called", not_permitted, "captured", 1, "called", 0, invalid]


def test_a_stream_that_waits_for_a_captured_one_is_captured(environment: Environment, tmp_path: Path) -> None:
    code = (
        "one, two, event, graph = (ctypes.c_void_p() for _ in range(4))\n"
        "runtime.cudaStreamCreate(ref(one)); runtime.cudaStreamCreate(ref(two)); runtime.cudaEventCreate(ref(event))\n"
        "def captured(): runtime.cudaStreamIsCapturing(two, ref(value)); out.append(value.value)\n"
        "runtime.cudaStreamBeginCapture(one, 0); captured()\n"
        "runtime.cudaEventRecord(event, one); runtime.cudaStreamWaitEvent(two, event, 0); captured()\n"
        "out.append(runtime.cudaStreamEndCapture(two, ref(graph)))\n"
        "runtime.cudaStreamEndCapture(one, ref(graph)); captured()\n"
    )
    assert called(environment, tmp_path, code) == [0, 1, 401, 0]


def test_events_are_no_measurement(environment: Environment, tmp_path: Path) -> None:
    code = (
        "one, two, untimed, time = *(ctypes.c_void_p() for _ in range(3)), ctypes.c_float()\n"
        "for event, flags in ((one, 0), (two, 0), (untimed, 2)): runtime.cudaEventCreateWithFlags(ref(event), flags)\n"
        "def elapsed(a, b): out.append(runtime.cudaEventElapsedTime(ref(time), a, b))\n"
        "elapsed(one, two)\n"
        "for event in (one, two, untimed): runtime.cudaEventRecord(event, None)\n"
        "elapsed(one, two); out.append(time.value); elapsed(one, untimed)\n"
        "runtime.cudaEventDestroy(two); elapsed(one, two)\n"
    )
    invalid = 400
    assert called(environment, tmp_path, code) == [invalid, 0, 1.0, invalid, invalid]


def test_memory_of_streams_and_pools(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import torch; before = torch.cuda.mem_get_info()[0]\n"
        "assert runtime.cudaMallocAsync(ref(place), ctypes.c_size_t(1 << 30), None) == 0\n"
        "out.append(before - torch.cuda.mem_get_info()[0])\n"
        "out += [runtime.cudaFreeAsync(place, None), before - torch.cuda.mem_get_info()[0]]\n"
        "out.append(runtime.cudaFree(place))\n"
    )
    assert called(environment, tmp_path, code) == [1 << 30, 0, 0, 1]


def test_torchs_allocator_of_streams(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n"
        "import torch; data = torch.arange(1 << 20); there = data.cuda(); large = torch.empty(1 << 30, device='cuda')\n"
        "out.append(bool((there.cpu() == data).all())); before = torch.cuda.mem_get_info()[0]\n"
        "del large; torch.cuda.empty_cache(); out.append(torch.cuda.mem_get_info()[0] - before)\n"
    )
    assert called(environment, tmp_path, code) == [True, 4 << 30]


def test_pinned_memory_is_known_as_the_hosts(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "out += [torch.zeros(8).pin_memory().is_pinned(), torch.zeros(8).is_pinned()]\n"
        "buffer = ctypes.create_string_buffer(4096)\n"
        "for _ in range(2): out.append(runtime.cudaHostRegister(buffer, ctypes.c_size_t(4096), 0))\n"
        "for _ in range(2): out.append(runtime.cudaHostUnregister(buffer))\n"
    )
    assert called(environment, tmp_path, code) == [True, False, 0, 712, 0, 713]


SEGMENTS = """
import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
data = torch.arange(1 << 20)
small = data.cuda()
large = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
out.append(bool((small.cpu() == data).all()))
before = torch.cuda.mem_get_info()[0]
del large; torch.cuda.empty_cache()
out.append(torch.cuda.mem_get_info()[0] - before >= 1 << 28)
out.append(bool((small.cpu() == data).all()))
try: torch.empty(1 << 38, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError: out.append("out of memory")
out.append(torch.cuda.memory_stats()["reserved_bytes.all.current"] > 0)
"""


def test_memory_that_is_mapped_at_reserved_addresses(environment: Environment, tmp_path: Path) -> None:
    assert called(environment, tmp_path, SEGMENTS) == [True, True, True, "out of memory", True]


def test_one_memory_at_two_addresses(environment: Environment, tmp_path: Path) -> None:
    code = (
        "unit = 2 << 20; handle, one, two = (ctypes.c_ulonglong() for _ in range(3)); u = ctypes.c_size_t(unit)\n"
        "prop = (ctypes.c_int * 8)(1, 0, 1, 0)  # pinned, no handle type, on device 0\n"
        "assert driver.cuMemCreate(ref(handle), u, prop, ctypes.c_ulonglong()) == 0\n"
        "for address in (one, two):\n"
        "    assert driver.cuMemAddressReserve(ref(address), u, *(ctypes.c_size_t(),) * 3) == 0\n"
        "    assert driver.cuMemMap(address, u, ctypes.c_size_t(), handle, ctypes.c_ulonglong()) == 0\n"
        "out.append(driver.cuMemMap(one, u, ctypes.c_size_t(), handle, ctypes.c_ulonglong()))\n"
        "def said(): out.append(ctypes.string_at(two.value, 4).decode())\n"
        "driver.cuMemcpyHtoD_v2(one, b'same', ctypes.c_size_t(4)); said(); driver.cuMemRelease(handle); said()\n"
        "out += [driver.cuMemUnmap(one, u), driver.cuMemUnmap(one, u), driver.cuMemAddressFree(one, u)]\n"
        "prop[3] = 1; out.append(driver.cuMemCreate(ref(handle), u, prop, ctypes.c_ulonglong()))\n"
    )
    invalid_device = 101
    assert called(environment, tmp_path, code) == [1, "same", "same", 0, 1, 0, invalid_device]


DEVICES = """
import torch
out.append(torch.cuda.device_count())
there = torch.arange(8).to("cuda:1")
large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
out += [there.device.index, there.to("cuda:0").cpu().tolist()]
out.append([torch.cuda.mem_get_info(i)[1] - torch.cuda.mem_get_info(i)[0] >= 1 << 30 for i in range(2)])
out.append(runtime.cudaSetDevice(2))
out.append(len({str(torch.cuda.get_device_properties(i).uuid) for i in range(2)}))
"""


def test_two_devices_have_their_own_memory(environment: Environment, tmp_path: Path) -> None:
    values = called(environment, tmp_path, DEVICES, count=2)
    assert values == [2, 1, list(range(8)), [False, True], 101, 2]


KERNEL = """
extern "C" __global__ void tiny(float* out) {
    __shared__ float fixed[1024];
    extern __shared__ float dynamic[];
    fixed[threadIdx.x] = dynamic[threadIdx.x] * 2;
    __syncthreads();
    out[threadIdx.x] = fixed[threadIdx.x ^ 1];
}
"""

LAUNCH = """
module, tiny = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoad(ref(module), CUBIN) == 0
out.append(driver.cuModuleGetFunction(ref(tiny), module, b"absent"))
assert driver.cuModuleGetFunction(ref(tiny), module, b"tiny") == 0
for number in (4, 1):  # registers, fixed shared memory
    driver.cuFuncGetAttribute(ref(value), number, tiny); out.append(value.value)
def launch(threads, shared): out.append(driver.cuLaunchKernel(tiny, 1, 1, 1, threads, 1, 1, shared, None, None, None))
launch(32, 0); launch(2048, 0); launch(32, 45057)
out.append(driver.cuFuncSetAttribute(tiny, 8, 232449)); driver.cuFuncSetAttribute(tiny, 8, 100000); launch(32, 100000)
driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(ref(value), tiny, 1024, ctypes.c_size_t()); out.append(value.value)
"""


def test_a_launch_is_held_to_the_limits_of_device_and_kernel(environment: Environment, tmp_path: Path) -> None:
    source, cubin = tmp_path / "tiny.cu", tmp_path / "tiny.cubin"
    source.write_text(KERNEL)
    nvcc = [str(environment.toolkit / "bin" / "nvcc"), "-ccbin", str(environment.cxx), "-arch=sm_100a", "-cubin"]
    subprocess.run([*nvcc, "-o", str(cubin), str(source)], check=True)
    (known,) = read_cubin(memoryview(cubin.read_bytes())).kernels

    values = called(environment, tmp_path, f"CUBIN = {str(cubin).encode()!r}\n{LAUNCH}")

    not_found, invalid = 500, 1
    assert values == [not_found, known.registers, 4096, 0, invalid, invalid, invalid, 0, 2]
    assert [r["event"] for r in records(tmp_path)] == ["load", "launch", "invalid launch", "invalid launch", "launch"]
    assert records(tmp_path)[2]["problem"] == "block"
    assert records(tmp_path)[3]["problem"] == "dynamic shared memory"


def test_triton_compiles_and_launches(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import os; os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.environ['TRITON_CACHE_DIR'] = CACHE\n"
        "import torch\n"
        "f = torch.compile(lambda x: torch.sin(x) * 2 + x)\n"
        "out.append(list(f(torch.ones(1000, device='cuda')).shape))\n"
    )
    assert called(environment, tmp_path, f"CACHE = {str(tmp_path / 'cache')!r}\n{code}") == [[1000]]
    names = [r["kernel"] for r in records(tmp_path) if r["event"] == "launch" and not r.get("registered")]
    assert names  # tuning launches more than one
    assert all(name.startswith("triton_") for name in names)


@pytest.mark.parametrize(
    ("library", "call", "found"),
    [
        ("driver", "cuMulticastCreate(None, None)", "cuMulticastCreate"),
        ("runtime", "cudaIpcGetMemHandle(None, None)", "cudaIpcGetMemHandle"),
    ],
)
def test_a_function_that_is_not_there_is_named(
    environment: Environment, tmp_path: Path, library: str, call: str, found: str
) -> None:
    with pytest.raises(ArchwrightError) as caught:
        called(environment, tmp_path, f"{library}.{call}")
    assert (caught.value.code, caught.value.found) == ("AW704", found)


def test_memory_cannot_be_allocated_inside_a_graph(environment: Environment, tmp_path: Path) -> None:
    code = (
        "stream = ctypes.c_void_p(); runtime.cudaStreamCreate(ref(stream)); runtime.cudaStreamBeginCapture(stream, 0)\n"
        "runtime.cudaMallocAsync(ref(place), ctypes.c_size_t(64), stream)\n"
    )
    with pytest.raises(ArchwrightError) as caught:
        called(environment, tmp_path, code)
    assert caught.value.found == "cudaMallocAsync in a captured stream"


def test_every_function_of_the_real_runtime_library_is_there(environment: Environment) -> None:
    real = next((environment.runtime / "lib").rglob("libcudart.so.13"))
    stand_in = build_stand_ins(environment) / "libcudart.so.13"

    assert symbols(real)
    assert symbols(real) - symbols(stand_in) == set()


@pytest.mark.parametrize("library", ["libcaffe2_nvrtc.so", "libtilelang.so", "libtvm_runtime.so"])
def test_every_driver_function_that_libraries_link_is_there(environment: Environment, library: str) -> None:
    linked = symbols(next((environment.runtime / "lib").rglob(library)), defined=False)
    driver = {name for name in linked if name[:2] == "cu" and name[2].isupper()}

    assert "cuTensorMapEncodeTiled" in driver
    assert driver - symbols(build_stand_ins(environment) / "libcudart.so.13") == set()


def test_nvml_knows_the_same_devices_and_nothing_else(environment: Environment, tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "nvml = ctypes.CDLL('libnvidia-ml.so.1'); text = ctypes.create_string_buffer(96)\n"
        "out += [nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ref(value)), value.value]\n"
        "for index in range(3): out.append(nvml.nvmlDeviceGetHandleByIndex_v2(index, ref(place)))\n"
        "nvml.nvmlDeviceGetHandleByPciBusId_v2(b'00000000:01:00.0', ref(place))\n"
        "nvml.nvmlDeviceGetUUID(place, text, 96)\n"
        "out.append(text.value.decode() == f'GPU-{torch.cuda.get_device_properties(1).uuid}')\n"
        "out.append(hasattr(nvml, 'nvmlDeviceGetTemperature'))\n"
    )
    assert called(environment, tmp_path, code, count=2) == [0, 0, 2, 0, 0, 2, True, False]


def symbols(path: Path, *, defined: bool = True) -> set[str]:
    """Functions of CUDA that a library has, or that it takes from others."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        names = {symbol.name for symbol in table.iter_symbols() if (symbol["st_shndx"] != "SHN_UNDEF") == defined}
    return {name for name in names if name.startswith(("cu", "__cuda"))}
