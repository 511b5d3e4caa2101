"""Counting instructions with a stand-in disassembler; the real ones are used by test_real_code.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError
from archwright.kernels import read_device_code
from archwright.sass import count_instructions, find_disassembler

from .fuzz.builders import FakeKernel, cubin

MEMBERS = {"a.cubin": cubin([FakeKernel("_Z1kv"), FakeKernel("_Z1gv")])}
CODE = read_device_code(MEMBERS)
NVDISASM = """\
cat <<'END'
	.target	sm_100a
//--------------------- .text._Z1kv --------------------------
.text._Z1kv:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/              @!P0 UTCHMMA gdesc[UR8], gdesc[UR10] ;
        /*0020*/              @UP1 UTMALDG.4D [UR4], [UR6] ;
        /*0030*/                   UTMALDG.3D.MULTICAST [UR4], [UR6] ;
        /*0040*/                   STL.64 [R1], R2 ;
        /*0050*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
.L_x_1:
.text._Z1gv:
        /*0000*/                   EXIT ;
END
echo called >>"$CALLS"
"""
CUOBJDUMP = """\
cat <<'END'
	code for sm_100a
	.target	sm_100a
		Function : _Z1kv
        /*0000*/                   LDC R1, c[0x0][0x37c] ;    /* 0x0000df00ff017b82 */
                                                              /* 0x000fe20000000800 */
        /*0010*/              @!P0 UTCHMMA gdesc[UR8], gdesc[UR10] ;  /* 0x00 */
		Function : _Z1gv
        /*0000*/                   EXIT ;
END
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_families_are_counted_by_kernel(script: Callable[[str, str], Path], calls: Path) -> None:
    found = {k.name: k.instructions for k in count_instructions(CODE, MEMBERS, script("nvdisasm", NVDISASM)).kernels}
    assert found == {"_Z1kv": {"tcgen05.mma": 1, "bulk copy": 2, "local memory": 1, "mma": 1}, "_Z1gv": {}}


def test_cuobjdumps_form_is_read_too(script: Callable[[str, str], Path]) -> None:
    found = {k.name: k.instructions for k in count_instructions(CODE, MEMBERS, script("cuobjdump", CUOBJDUMP)).kernels}
    assert found == {"_Z1kv": {"tcgen05.mma": 1}, "_Z1gv": {}}


@pytest.mark.parametrize("damage", [None, "", "{", "[]", '{"x": 1}'])
def test_counts_are_kept_by_the_cubins_hash(
    damage: str | None, script: Callable[[str, str], Path], calls: Path, tmp_path: Path
) -> None:
    known = tmp_path / "sass.json"
    tool = script("nvdisasm", NVDISASM)
    first = count_instructions(CODE, MEMBERS, tool, known)
    if damage is not None:
        known.write_text(damage)
    assert count_instructions(CODE, MEMBERS, tool, known) == first
    assert calls.read_text().count("called") == (1 if damage is None else 2)


@pytest.mark.parametrize("text", ["echo no such architecture >&2; exit 1", "kill -9 $$"])
def test_aw423_a_disassembler_that_fails_says_so(text: str, script: Callable[[str, str], Path]) -> None:
    with pytest.raises(ArchwrightError, match="AW423"):
        count_instructions(CODE, MEMBERS, script("nvdisasm", text))


def test_nvdisasm_is_preferred(script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cuobjdump = script("cuobjdump", "")
    monkeypatch.setenv("PATH", str(cuobjdump.parent))
    assert find_disassembler() == cuobjdump
    nvdisasm = script("nvdisasm", "")
    assert find_disassembler() == nvdisasm
