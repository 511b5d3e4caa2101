"""What a cubin says of itself. That the figures are cuobjdump's is shown by test_real_code.py, with real code."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.cubin import Kernel, ptx_arch, read_cubin
from archwright.elf import Damaged

from .fuzz.builders import NOTE, PROGBITS, FakeKernel, Part, attribute, cubin, elf, library, ptx


def test_every_figure_of_a_kernel() -> None:
    kernels = [
        FakeKernel("_Z1zv", 255, 704, 16, 1280, {0: 908, 2: 40, 4: 8}, (64, 2, 2), 6144),
        FakeKernel("_Z1av", 24, code=256),
    ]
    found = read_cubin(cubin(kernels))

    assert found.kernels == (
        Kernel("_Z1av", 24, 0, 0, 0, {0: 908}, 0, 256),
        Kernel("_Z1zv", 255, 704, 16, 1280, {0: 908, 2: 40, 4: 8}, 256, 6144),
    )
    assert (found.arch, found.toolkit, found.relocatable) == ("sm_100a", "13.2.86", False)
    assert "-arch sm_100a -m 64" in found.notes


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120a"])
def test_the_exact_architecture_is_in_the_note(arch: str) -> None:
    assert read_cubin(cubin(arch=arch, release="13.1.115")).arch == arch
    assert read_cubin(cubin(arch=arch, release="13.1.115")).toolkit == "13.1.115"


def test_relocatable_code_and_code_without_kernels() -> None:
    assert read_cubin(cubin(kind=1)).relocatable
    assert read_cubin(cubin([])).kernels == ()


def test_a_required_block_counts_like_a_bound() -> None:
    required = Part(".nv.info._Z1kv", 0x70000000, attribute(0x10, 128, 3, 1))
    assert read_cubin(cubin([FakeKernel("_Z1kv")], parts=[required])).kernels[0].max_threads == 384


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (library(), "not a cubin"),
        (cubin(abi=7), "ABI version 7"),
        (cubin(arch="sm_100a", number=103), "whose header says 103"),
        (cubin(arch="sm_100x", number=100), "without the note"),
        (cubin(arch="sm_١٠٠", number=100), "whose header says 100"),
        (cubin(release="13"), "without the note"),
        (elf([], machine=190, abi=8), "without the note"),
        (elf([Part(".note.nv.tkinfo", NOTE, b"short")], machine=190, abi=8), "without the note"),
        (cubin([FakeKernel("_Z1kv"), FakeKernel("_Z1kv")]), "two kernels with the name _Z1kv"),
        (cubin(parts=[Part(".nv.info", 1, struct.pack("<BBH", 4, 0x2F, 9) + bytes(8))]), "ends after its section"),
        (cubin(parts=[Part(".nv.info._Z1kv", 1, struct.pack("<BBH", 4, 5, 65535))]), "ends after its section"),
        (cubin(parts=[Part(".text.more", PROGBITS, b"x", size=1 << 62)]), "larger than twice the file"),
    ],
)
def test_what_is_not_a_whole_cubin_is_damaged(data: bytes, says: str) -> None:
    with pytest.raises(Damaged, match=says):
        read_cubin(data)


def test_attributes_that_are_too_short_say_nothing() -> None:
    short = [Part(".nv.info", 1, attribute(0x2F, 2)), Part(".nv.info._Z1kv", 1, attribute(0x05, 7))]
    (kernel,) = read_cubin(cubin(parts=short)).kernels
    assert (kernel.registers, kernel.max_threads) == (32, 0)


def test_cut_at_each_byte() -> None:
    data = cubin()
    for end in range(len(data)):
        with pytest.raises(Damaged):
            read_cubin(data[:end])


SAMPLE = cubin([FakeKernel("_Z1kv", shared=64, max_threads=(256, 1, 1)), FakeKernel("_Z1gi", local=8)])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_result_or_damaged(data: st.DataObject) -> None:
    changed = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        at = data.draw(st.integers(0, len(changed) - size))
        value = data.draw(st.integers(0, (1 << 8 * size) - 1) | st.just((1 << 8 * size) - 1))
        changed[at : at + size] = value.to_bytes(size, "little")
    try:
        found = read_cubin(bytes(changed))
    except Damaged as error:
        assert str(error)
    else:
        assert found.arch.startswith("sm_")


@pytest.mark.parametrize("arch", ["sm_100a", "sm_100f", "sm_90"])
def test_the_target_of_ptx(arch: str) -> None:
    assert ptx_arch(ptx(arch)) == arch
    assert ptx_arch(f"  .target\t{arch}, debug\n".encode() + b"\0\0\0") == arch


@pytest.mark.parametrize(
    "text", [b"", b"// .target sm_100a", b".target compute_100", b".target sm_100x\n", b"\xff" * 9]
)
def test_ptx_without_a_target_is_damaged(text: bytes) -> None:
    with pytest.raises(Damaged, match=r"without \.target"):
        ptx_arch(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [b"\n" * 1_000_000, b" " * 1_000_000, b" \n" * 500_000, b".target" + b" " * 1_000_000])
def test_looking_for_the_target_takes_time_in_proportion(text: bytes) -> None:
    with pytest.raises(Damaged):
        ptx_arch(text)
