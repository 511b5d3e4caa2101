"""All device code of a wheel, wherever it is; spills only for the kernel that they are about."""

from __future__ import annotations

import pytest

from archwright.elf import Damaged
from archwright.fatbin import MAGIC
from archwright.kernels import Ptx, cubin_payloads, read_device_code
from archwright.ptxas import Report

from .fuzz.builders import PROGBITS, FakeKernel, Part, container, cubin, entry, library, packed, ptx

CODE = cubin([FakeKernel("_Z1kv", registers=40, stack=16)])


def with_fatbin(data: bytes, section: str = ".nv_fatbin") -> bytes:
    return library(["libc.so.6"], parts=[Part(section, PROGBITS, data)])


@pytest.mark.parametrize(
    "members",
    [
        {"a.so": with_fatbin(container(entry(CODE)))},
        {"a.so": with_fatbin(container(packed(CODE, "lz4")))},
        {"a.fatbin": container(packed(CODE, "zstd"))},
        {"a.cubin": CODE},
        {"some.bin": CODE, "readme.txt": b"text"},
    ],
)
def test_kernels_are_found_in_every_kind_of_file(members: dict[str, bytes]) -> None:
    code = read_device_code(members)
    (kernel,) = code.kernels
    assert (kernel.name, kernel.arch, kernel.registers, kernel.stack) == ("_Z1kv", "sm_100a", 40, 16)
    assert kernel.member == next(iter(members))
    assert [bytes(payload) for payload in cubin_payloads(members)] == [CODE]


def test_ptx_is_found_in_containers_and_in_files() -> None:
    members = {"a.so": with_fatbin(container(packed(ptx("sm_100f"), "zstd", kind=1))), "b.ptx": ptx("sm_90")}
    assert read_device_code(members).ptx == (
        Ptx("a.so", "sm_100f", len(ptx("sm_100f"))),
        Ptx("b.ptx", "sm_90", len(ptx("sm_90"))),
    )


def test_host_libraries_say_what_they_need() -> None:
    (binary,) = read_device_code({"a.so": library(["libc.so.6"], ["$ORIGIN"])}).binaries
    assert (binary.processor, binary.dynamic.needed, binary.dynamic.run_paths) == (
        "x86_64",
        ("libc.so.6",),
        ("$ORIGIN",),
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_fatbin(container(entry(CODE)), ".rodata"), "where nvcc puts none"),
        (with_fatbin(container(entry(CODE, number=90))), "says 90 around a cubin for sm_100a"),
        (with_fatbin(container(entry(b"no cubin")[:-8])), "a.so"),
        (b"\x7fELF", "a.so: ELF header"),
        (MAGIC, "a.so"),
    ],
)
def test_what_does_not_fit_is_damaged_and_names_the_file(data: bytes, says: str) -> None:
    with pytest.raises(Damaged, match=says):
        read_device_code({"a.so": data})


@pytest.mark.parametrize(
    ("report", "stores"),
    [
        (Report("_Z1kv", "sm_100a", 40, 16, 20, 28), 20),
        (Report("_Z1kv", "sm_100a", 41, 16, 20, 28), None),
        (Report("_Z1kv", "sm_100a", 40, 0, 20, 28), None),
        (Report("_Z1kv", "sm_103a", 40, 16, 20, 28), None),
    ],
)
def test_a_report_about_other_code_is_not_taken(report: Report, stores: int | None) -> None:
    code = read_device_code({"a.cubin": CODE}).with_reports({report.key: report})
    assert code.kernels[0].spill_stores == stores
