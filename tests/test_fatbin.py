"""Containers of device code: every form that nvcc writes, and nothing but `Damaged` for what lies."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.elf import Damaged
from archwright.fatbin import Kind, read_fatbin

from .fuzz.builders import LZ4, ZSTD, container, cubin, entry, everything, packed, ptx

CODE = cubin()


def payloads(data: bytes, **options: int) -> list[bytes]:
    return [bytes(found.payload) for found in read_fatbin(data, **options)]


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
def test_an_entry_of_each_compression(compression: str) -> None:
    made = packed(CODE, compression, number=103) if compression else entry(CODE, number=103)
    (found,) = read_fatbin(container(made))

    assert (found.kind, found.number, found.compression) == (Kind.CUBIN, 103, compression)
    assert bytes(found.payload) == CODE
    assert found.stored < len(CODE) if compression else found.stored == len(CODE)


def test_ptx_and_cubins_of_several_containers_with_zeros_between() -> None:
    data = container(entry(CODE), packed(ptx("sm_100f"), "zstd", kind=1)) + bytes(24) + container(packed(CODE, "lz4"))
    assert [found.kind for found in read_fatbin(data)] == [Kind.CUBIN, Kind.PTX, Kind.CUBIN]
    assert payloads(data) == [CODE, ptx("sm_100f"), CODE]


def test_nothing_is_no_device_code() -> None:
    assert payloads(b"") == payloads(bytes(64)) == payloads(container()) == []


def test_a_header_that_grew_is_skipped_by_its_size() -> None:
    assert payloads(container(entry(CODE, header=96))) == [CODE]


@pytest.mark.parametrize(
    "data",
    [
        b"something else",
        bytes(8) + b"x",
        container(entry(CODE), version=2),
        container(entry(CODE), header=15),
        container(entry(CODE), header=65535),
        container(entry(CODE), size=1 << 63),
        container(entry(CODE), size=64),  # ends inside the payload
        container(entry(CODE), size=24),  # inside the header
        container(entry(CODE), size=len(entry(CODE)) + 8),
        container(entry(CODE), entry(CODE, kind=3)),
        container(entry(CODE, kind=0)),
        container(entry(CODE, padded=1 << 63)),
        container(entry(CODE, padded=(1 << 64) - 64)),  # would go back to the entry's own begin
        container(struct.pack("<HHI", 2, 0x101, 0) + entry(CODE)[8:]),  # a header of no bytes
        container(struct.pack("<HHI", 2, 0x101, 0xFFFFFFFF) + entry(CODE)[8:]),
        container(entry(CODE, compressed=len(CODE))),  # in no way that is known
        container(packed(CODE, "lz4", flags=0x11)),
        container(packed(CODE, "zstd", compressed=0xFFFFFFFF)),
        container(packed(CODE, "zstd", flags=0x11 | LZ4)),
        container(packed(CODE, "lz4", flags=0x11 | ZSTD)),
        container(entry(b"garbage!" * 8, flags=LZ4, compressed=64, size=4096)),
        container(entry(b"garbage!" * 8, flags=ZSTD, compressed=64, size=4096)),
    ],
)
def test_what_lies_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        payloads(data)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("size", [0, 1, len(CODE) - 1, len(CODE) + 1, 1 << 30])
def test_a_payload_has_exactly_the_size_that_it_says(compression: str, size: int) -> None:
    with pytest.raises(Damaged, match="decompress"):
        payloads(container(packed(CODE, compression, size=size)))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("size", [1 << 31, 1 << 40, (1 << 64) - 1])
def test_a_size_above_the_limit_is_refused_before_anything_is_decompressed(compression: str, size: int) -> None:
    with pytest.raises(Damaged, match="the limit is"):
        payloads(container(packed(CODE, compression, size=size)), limit=1 << 20)


@pytest.mark.parametrize("make", [entry, lambda code: packed(code, "lz4"), lambda code: packed(code, "zstd")])
def test_the_limit_is_for_all_entries_together(make) -> None:
    data = container(*[make(CODE)] * 3)
    assert len(payloads(data, limit=3 * len(CODE))) == 3
    with pytest.raises(Damaged, match="limit"):
        payloads(data, limit=3 * len(CODE) - 1)


def test_a_zstandard_frame_that_lies_about_its_own_size() -> None:
    """The frame header says 4 KiB, then 64 MiB come."""
    import zstandard

    honest = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(64 << 20))
    parameters = zstandard.get_frame_parameters(honest)
    assert parameters.content_size == 64 << 20
    lying = honest.replace(struct.pack("<I", 64 << 20), struct.pack("<I", 4096), 1)
    assert zstandard.get_frame_parameters(lying).content_size == 4096
    data = container(entry(lying, flags=ZSTD, compressed=len(lying), size=4096))
    with pytest.raises(Damaged):
        payloads(data)


#: Prints its peak memory in MiB (ru_maxrss would hold pytest's, from before the exec).
BOMB = """
import re, resource, sys
from pathlib import Path
from archwright.elf import Damaged
from archwright.fatbin import read_fatbin
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
data = sys.stdin.buffer.read()
try:
    print([len(found.payload) for found in read_fatbin(data)])
except Damaged as error:
    print("damaged")
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("size", [4096, (2 << 30) - 1])
def test_a_bomb_takes_no_memory(compression: str, size: int) -> None:
    """256 MiB of zeros that say they are 4 KiB, or 2 GiB; in a process of its own, with 1 GiB of address space."""
    data = container(packed(bytes(256 << 20), compression, size=size))
    assert len(data) < 2 << 20
    run = subprocess.run([sys.executable, "-c", BOMB], input=data, capture_output=True, check=True)
    said, peak = run.stdout.split()
    assert said == b"damaged"
    assert int(peak) < 100


def test_a_container_cut_at_each_byte() -> None:
    data = container(entry(CODE), packed(ptx(), "zstd", kind=1))
    for end in range(1, len(data)):
        with pytest.raises(Damaged):
            payloads(data[:end])


SAMPLES = [data for name, data in everything().items() if name.endswith(".fatbin")]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_changed_bytes_give_a_result_or_damaged(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        at = data.draw(st.integers(0, len(changed) - size))
        action = data.draw(st.sampled_from(["extreme", "flip", "cut", "insert"]))
        if action == "extreme":
            value = data.draw(st.sampled_from([0, 1, 63, 64, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]))
            changed[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        elif action == "flip":
            changed[at] ^= 1 << data.draw(st.integers(0, 7))
        elif action == "cut":
            del changed[at : at + size]
        else:
            changed[at:at] = bytes(size)
    limit = 1 << 20
    try:
        assert sum(map(len, payloads(bytes(changed), limit=limit))) <= limit
    except Damaged as error:
        assert str(error)
