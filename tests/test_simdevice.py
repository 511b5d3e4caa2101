"""The simulated device, function by function: what a program is told, and what it can call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archwright.devices import find_device
from archwright.environment import Environment, create_environment
from archwright.simulate import run_simulated
from archwright.targets import target_table

pytestmark = pytest.mark.wheels

#: Attributes that are zero: identity (PCI), and capabilities that are not implemented, so that no program relies on
#: them. Everything else is a size or a count, by which programs divide.
ZERO = {17, 18, 20, 33, 34, 35, 50, 83, 84, 85, 86, 88, 89, *range(92, 95), 96, 98, 100, 101, 104, 105}
ZERO |= {107, *range(112, 120), *range(121, 126), *range(127, 148), 44}

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


def called(environment: Environment, tmp_path: Path, code: str, device: str = "b200") -> list[object]:
    """What `code` put into `out`, without torch: the functions alone."""
    script, result = tmp_path / "s.py", tmp_path / "out.json"
    script.write_text(f"{BEGIN}{code}\nopen({str(result)!r}, 'w').write(json.dumps(out))\n")
    command = [str(environment.runtime / "bin" / "python"), str(script)]
    assert run_simulated(device, environment, command, tmp_path / "log").status == 0
    values: list[object] = json.loads(result.read_text())
    return values


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
