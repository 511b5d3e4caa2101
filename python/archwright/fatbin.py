"""Containers of device code as nvcc writes them into `.nv_fatbin` and `__nv_relfatbin`: cubins and PTX, compressed too.

The format is not documented; what stands here was found out with nvcc 13.2 and cuobjdump, and is compared with
cuobjdump by the tests (docs/inspection.md). All numbers are little-endian:

    container   u32 0xBA55ED50, u16 version 1, u16 header size 16, u64 size of what follows; aligned to 8 bytes
    entry       u16 kind (1 PTX, 2 cubin), u16 0x101, u32 header size, u64 payload size (padded),
                at 16: u32 compressed size (0: stored plain), at 28: u32 architecture number,
                at 40: u64 flags (0x2000 LZ4, 0x8000 Zstandard), at 56: u64 decompressed size
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from .elf import Damaged

__all__ = ["MAGIC", "Entry", "Kind", "read_fatbin"]

MAGIC = struct.pack("<I", 0xBA55ED50)
_LZ4, _ZSTD = 0x2000, 0x8000


class Kind(StrEnum):
    PTX = "ptx"
    CUBIN = "cubin"


@dataclass(frozen=True, slots=True)
class Entry:
    """One cubin or PTX text: decompressed `payload`, bytes as `stored`, and architecture (100 for sm_100a)."""

    kind: Kind
    number: int
    payload: bytes | memoryview
    stored: int
    compression: str = ""


def read_fatbin(section: bytes | memoryview, limit: int = 2 << 30) -> Iterator[Entry]:
    """Each entry of the containers in `section`, which may have zeros between them.

    Raises Damaged when a size or an offset does not fit, for a kind or compression that is not known, and when the
    payloads together are larger than `limit` bytes.
    """
    data = memoryview(section)
    at = 0
    while at < len(data):
        if bytes(data[at : at + 4]) != MAGIC:
            if any(data[at : at + 8]):
                raise Damaged(f"no container of device code at {at:#x}")
            at += 8
            continue
        version, header, size = _unpack("<HHQ", data, at + 4)
        if version != 1 or header < 16 or at + header + size > len(data):
            raise Damaged(f"container at {at:#x}: version {version}, header {header}, size {size:#x}")
        end = at + header + size
        at += header
        while at < end:
            entry, at = _read_entry(data[:end], at, limit)
            limit -= len(entry.payload)
            yield entry
        at = (at + 7) // 8 * 8


def _read_entry(data: memoryview, at: int, limit: int) -> tuple[Entry, int]:
    kind, header, padded, compressed = _unpack("<H2xIQI", data, at)
    (number,) = _unpack("<I", data, at + 28)
    (flags,) = _unpack("<Q", data, at + 40)
    (size,) = _unpack("<Q", data, at + 56)
    start = at + header
    stored = compressed or padded
    if header < 64 or start + padded > len(data) or stored > padded:
        raise Damaged(f"entry at {at:#x}: header {header}, payload {padded:#x}, compressed {compressed:#x}")
    if kind not in (1, 2):
        raise Damaged(f"entry at {at:#x}: kind {kind} is neither PTX nor a cubin")
    payload: bytes | memoryview = data[start : start + stored]
    compression = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else ""
    if compression and compressed:
        if size > limit:
            raise Damaged(f"entry at {at:#x} decompresses to {size} bytes; the limit is {limit}")
        payload = _decompress(compression, bytes(payload), size, at)
    elif compressed:
        raise Damaged(f"entry at {at:#x}: compressed in a way that is not known (flags {flags:#x})")
    elif len(payload) > limit:
        raise Damaged(f"device code of more than the limit at {at:#x}")
    else:
        compression = ""
    return Entry(Kind.PTX if kind == 1 else Kind.CUBIN, number, payload, stored, compression), start + padded


def _decompress(compression: str, data: bytes, size: int, at: int) -> bytes:
    """Exactly `size` bytes, never more, whatever the compressed data says of itself."""
    try:
        if compression == "lz4":
            from lz4 import block

            result: bytes = block.decompress(data, uncompressed_size=size)  # type: ignore[attr-defined]
        else:
            import zstandard

            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
                result = reader.read(size + 1)
    except Exception as error:  # each library has its own, and MemoryError for a size that lies
        raise Damaged(f"entry at {at:#x} does not decompress as {compression}: {error}") from None
    if len(result) != size:
        raise Damaged(f"entry at {at:#x} decompresses to {len(result)} bytes or more and says {size}")
    return result


def _unpack(form: str, data: memoryview, at: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, data, at)
    except struct.error:
        raise Damaged(f"a header at {at:#x} ends after the section ({len(data):#x} bytes)") from None
