"""Ascend device code made by hand: entry symbols, the ways libraries carry it, and files that lie."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.cce import AscendKernel, read_cce
from archwright.elf import Damaged
from archwright.kernels import has_host_code, read_device_code

from .fuzz.builders import PROGBITS, FakeEntry, Part, ascend_kernels, cce, cubin, everything, library

SOC = ".ascend.kernel.ascend950pr_9599.ops"


def carrier(section: str, content: bytes) -> bytes:
    return library(["libc.so.6", "libascendcl.so"], parts=[Part(section, PROGBITS, content)])


def test_a_device_file_says_its_entries_and_nothing_that_it_does_not_know() -> None:
    found = read_cce(cce([FakeEntry("run", code=64, arguments=56)]), "kernel.aibin")
    assert found.kernels == (AscendKernel("run", "unknown", 64, 56),)
    assert (found.arch, found.soc, found.flags, found.relocatable) == ("unknown", "", 0x990000, False)
    assert found.compilers == ("Linker: LLD 15.0.5",)
    assert found.as_dict()["flags"] == "0x990000"


@pytest.mark.parametrize(
    ("entry", "core"),
    [
        (FakeEntry("run", kernel_type=1), "aicore"),
        (FakeEntry("run", kernel_type=2), "cube"),
        (FakeEntry("run", kernel_type=3), "vector"),
        (FakeEntry("run_mix_aic", kernel_type=4), "mix, cube leads"),
        (FakeEntry("run_mix_aiv", kernel_type=5), "mix, vector leads"),
        (FakeEntry("run_mix_aic"), "cube"),
        (FakeEntry("run_mix_aiv", kernel_type=99), "vector"),
        (FakeEntry("run", kernel_type=99), "unknown"),
    ],
)
def test_the_core_is_that_of_the_metadata_or_of_the_suffix(entry: FakeEntry, core: str) -> None:
    (kernel,) = read_cce(cce([entry]), "a.o").kernels
    assert kernel.core == core


def test_functions_that_kernels_call_are_no_entries() -> None:
    """As in torch_npu: 136 global functions, two of them with arguments."""
    entries = [FakeEntry("run_mix_aic"), FakeEntry("run_mix_aiv"), FakeEntry("D_V_ADD", arguments=None)]
    assert [kernel.name for kernel in read_cce(cce(entries), "a").kernels] == ["run_mix_aic", "run_mix_aiv"]


def test_without_any_record_every_global_function_is_an_entry() -> None:
    entries = [FakeEntry("a", arguments=None), FakeEntry("b", arguments=None)]
    assert [(k.name, k.arguments) for k in read_cce(cce(entries), "a").kernels] == [("a", None), ("b", None)]


@pytest.mark.parametrize("how", [{"binding": 0}, {"binding": 2}, {"other": 2}, {"kind": 1}])
def test_what_the_loader_does_not_take_is_no_entry(how: dict[str, Any]) -> None:
    assert read_cce(cce([FakeEntry("run", **how)]), "a").kernels == ()


def test_an_undefined_function_is_no_entry() -> None:
    assert read_cce(cce([FakeEntry("run")], section=0), "a").kernels == ()


@pytest.mark.parametrize(
    ("section", "content", "arch", "core"),
    [
        (".aicore_binary", cce(), "unknown", "unknown"),
        ("__aicore_rel_binary", bytes(8) + cce(kind=1) + bytes(8), "unknown", "unknown"),
        (".rodata", b"constants" + cce() + b"more", "unknown", "unknown"),
        (SOC, ascend_kernels((1, cce())), "dav-3510", "vector"),
        (SOC, ascend_kernels((2, cce())), "dav-3510", "cube"),
        (SOC, ascend_kernels((0, cce())), "dav-3510", "unknown"),
        (".ascend.kernel.ascend910_9589.ops", ascend_kernels((1, cce())), "dav-3510", "vector"),
        (".ascend.kernel.ascend950.ops", ascend_kernels((1, cce())), "dav-3510", "vector"),
        (".ascend.kernel.ascend910b1.ops", ascend_kernels((1, cce())), "ascend910b1", "vector"),
        (".ascend.kernel.ascend950xx_1.ops", ascend_kernels((1, cce())), "ascend950xx_1", "vector"),
    ],
)
def test_every_known_way_in_which_a_library_carries_code(section: str, content: bytes, arch: str, core: str) -> None:
    code = read_device_code({"a.so": carrier(section, content)})
    (found,) = code.ascend
    assert (found.member, found.section, found.arch, found.kernels[0].core) == ("a.so", section, arch, core)
    assert code.inventory == {arch: ["run"]}
    assert code.unknown == {}
    assert [binary.member for binary in code.binaries] == ["a.so"]


def test_g4_the_inventory_is_by_architecture() -> None:
    both = [Part(SOC, PROGBITS, ascend_kernels((1, cce([FakeEntry("add")])), (2, cce([FakeEntry("mul")]))))]
    old = Part(".ascend.kernel.ascend910b1.ops", PROGBITS, ascend_kernels((1, cce([FakeEntry("sub")]))))
    code = read_device_code({"a.so": library(parts=[*both, old]), "b.aibin": cce([FakeEntry("run")])})
    assert code.inventory == {"ascend910b1": ["sub"], "dav-3510": ["add", "mul"], "unknown": ["run"]}


def test_a_library_for_ascend_that_carries_nothing_known_is_unknown() -> None:
    members = {
        "a.so": library(["libtorch_npu.so", "libc.so.6"]),
        "b.so": library(["libc.so.6", "libacl.so.1"]),  # access control lists of files
    }
    assert read_device_code(members).unknown == {"a.so": ["libtorch_npu.so"]}


def test_device_code_alone_does_not_bind_a_wheel_to_a_platform() -> None:
    assert not has_host_code({"a.aibin": cce(), "b.cubin": cubin()})
    assert has_host_code({"a.aibin": cce(), "b.so": library()})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (cce(section=77), "lies in section 77, which does not exist"),
        (cce([FakeEntry("run"), FakeEntry("run")]), "two entry symbols with the name run"),
        (carrier(".aicore_binary", b"recorded: bisheng -c"), "section .aicore_binary holds no Ascend device code"),
        (carrier(".aicore_binary", cubin()), "holds no Ascend device code"),
        (carrier(".aicore_binary", cce()[:-70]), "section headers"),
        (carrier(".rodata", cce()[:-70]), "section headers"),
        (carrier(SOC, b""), "is not of version 1"),
        (carrier(SOC, ascend_kernels(version=2)), "is not of version 1"),
        (carrier(SOC, ascend_kernels((1, cce()), count=2)), "ends before its entry"),
        (carrier(SOC, ascend_kernels((3, cce()))), "of kind 3"),
        (carrier(SOC, ascend_kernels((1, cce()))[:-4]), "entry at 0x8 of kind 1"),
        (carrier(SOC, ascend_kernels((1, cubin()))), "an ELF file for machine 0xbe, not for Ascend"),
        (carrier(SOC, ascend_kernels((1, b"recorded"))), "ELF header"),
    ],
)
def test_what_does_not_fit_is_damaged_and_names_the_file(data: bytes, says: str) -> None:
    with pytest.raises(Damaged, match=rf"a\.so: .*{says}"):
        read_device_code({"a.so": data})


@pytest.mark.parametrize("section", [".aicore_binary", ".rodata"])
@pytest.mark.parametrize("data", [cce(), cubin()])
def test_an_embedded_file_with_program_headers_beyond_all_bytes_is_damaged(section: str, data: bytes) -> None:
    far = bytearray(data)
    far[32:40] = (1 << 63).to_bytes(8, "little")
    with pytest.raises(Damaged, match=r"after what holds it|holds no Ascend device code"):
        read_device_code({"a.so": carrier(section, bytes(far))})


def test_a_file_cut_at_each_byte_is_damaged() -> None:
    data = cce([FakeEntry("run", code=8)])
    for end in range(20, len(data)):
        with pytest.raises(Damaged):
            read_device_code({"a.aibin": data[:end]})


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([everything()[name] for name in ("kernel.aibin", "ascend.so")]), st.data())
def test_changed_bytes_give_a_result_or_damaged(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        at = data.draw(st.integers(0, len(changed) - size))
        value = data.draw(st.sampled_from([0, 1, 0x1029, 1 << 31, (1 << 32) - 1, (1 << 64) - 1]))
        changed[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    try:
        code = read_device_code({"a.so": bytes(changed)})
    except Damaged as error:
        assert str(error).isprintable()
    else:
        assert all(name.isprintable() for names in code.inventory.values() for name in names)
