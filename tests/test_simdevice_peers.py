"""The simulated device's virtual memory, batches of copies and values that streams write and wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from archwright.environment import Environment, create_environment
from archwright.targets import target_table

from .alone import call_stand_ins

pytestmark = pytest.mark.wheels

BEGIN = """
import ctypes, json, os
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
MIB, SIZE, out = 1 << 20, ctypes.c_size_t, []
def ref(x): return ctypes.byref(x)
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("rest", ctypes.c_char * 16)]
def create(mib, kind=1, handles=1):
    made = ctypes.c_uint64()
    status = driver.cuMemCreate(ref(made), SIZE(mib * MIB), ref(Properties(1, handles, Location(kind, 0), b"")),
                                ctypes.c_ulonglong(0))
    return status, made
def place(mib, handle):
    at = ctypes.c_uint64()
    assert driver.cuMemAddressReserve(ref(at), SIZE(mib * MIB), SIZE(2 * MIB), ctypes.c_uint64(0), 0) == 0
    assert driver.cuMemMap(at, SIZE(mib * MIB), SIZE(0), handle, 0) == 0
    assert driver.cuMemSetAccess(at, SIZE(mib * MIB), None, SIZE(1)) == 0
    return at.value
def free():
    left, total = SIZE(), SIZE()
    assert runtime.cudaMemGetInfo(ref(left), ref(total)) == 0
    return left.value
def text(at, length=2): return ctypes.string_at(at, length).decode()
"""


@pytest.fixture(scope="session")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


def called(environment: Environment, tmp_path: Path, code: str) -> list[object]:
    return call_stand_ins(environment, tmp_path, BEGIN + code)


def test_what_a_handle_gives_away_is_one_memory(environment: Environment, tmp_path: Path) -> None:
    code = """
status, handle = create(4)
here, file, other = place(4, handle), ctypes.c_int(), ctypes.c_uint64()
assert driver.cuMemExportToShareableHandle(ref(file), handle, 1, ctypes.c_ulonglong(0)) == 0
assert driver.cuMemRelease(handle) == 0
assert driver.cuMemImportFromShareableHandle(ref(other), ctypes.c_void_p(file.value), 1) == 0
there = place(4, other)
ctypes.memmove(here + 3 * MIB, b"ok", 2)
out += [here % (2 * MIB), here != there, text(there + 3 * MIB)]
"""
    assert called(environment, tmp_path, code) == [0, True, "ok"]


def test_zeros_reach_every_mapping(environment: Environment, tmp_path: Path) -> None:
    code = """
status, handle = create(4)
here, there = place(4, handle), place(4, handle)
ctypes.memset(here, 7, 4 * MIB)
assert runtime.cudaMemset(ctypes.c_void_p(here + 100), 0, SIZE(4 * MIB - 100)) == 0
kept, cleared = ctypes.string_at(there, 100), ctypes.string_at(there + 100, 4 * MIB - 100)
out += [kept == bytes([7]) * 100, not cleared.strip(b"\\0")]
"""
    assert called(environment, tmp_path, code) == [True, True]


def test_it_counts_as_the_devices_memory_until_handle_and_mappings_are_gone(
    environment: Environment, tmp_path: Path
) -> None:
    code = """
class Attributes(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("rest", ctypes.c_char * 128)]
def kind(at):
    told = Attributes()
    assert runtime.cudaPointerGetAttributes(ref(told), ctypes.c_void_p(at)) == 0
    return told.type
before = free()
status, handle = create(6)
at = place(6, handle)
out += [before - free(), kind(at + 5 * MIB)]
assert driver.cuMemRelease(handle) == 0
out.append(before - free())
assert driver.cuMemUnmap(ctypes.c_uint64(at), SIZE(6 * MIB)) == 0
out += [before - free(), kind(at)]
host = place(2, create(2, kind=3)[1])
out += [before - free(), kind(host)]
"""
    assert called(environment, tmp_path, code) == [6 << 20, 2, 6 << 20, 0, 0, 0, 1]


def test_what_does_not_fit_or_is_not_there_is_refused(environment: Environment, tmp_path: Path) -> None:
    code = """
out += [create(1 << 20)[0], create(1)[0], create(2, handles=8)[0]]
handle = create(2)[1]
out.append(driver.cuMemMap(ctypes.c_uint64(place(4, create(4)[1])), SIZE(4 * MIB), SIZE(0), handle, 0))
"""
    assert called(environment, tmp_path, code) == [2, 1, 801, 1]  # out of memory, invalid, not supported, invalid


def test_batches_copy_and_streams_write_values(environment: Environment, tmp_path: Path) -> None:
    code = """
class Operation(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_int), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64),
                ("flags", ctypes.c_uint), ("rest", ctypes.c_char * 16)]
assert ctypes.sizeof(Operation) == 48
at = place(2, create(2)[1])
ctypes.memmove(at, b"abcd", 4)
to, of = (ctypes.c_void_p * 2)(at + 100, at + 200), (ctypes.c_void_p * 2)(at, at + 2)
assert runtime.cudaMemcpyBatchAsync(to, of, (SIZE * 2)(2, 2), SIZE(2), None, None, SIZE(0), None) == 0
out += [text(at + 100), text(at + 200)]
operations = (Operation * 2)(Operation(5, at + 800, 1 << 40, 0, b""), Operation(4, at + 900, 1, 0, b""))
assert driver.cuStreamBatchMemOp_v2(None, 2, operations, 0) == 0
out.append(ctypes.c_uint64.from_address(at + 800).value == 1 << 40)
"""
    assert called(environment, tmp_path, code) == ["ab", "cd", True]
