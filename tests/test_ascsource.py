"""Checks of lowered Ascend C that need no compiler."""

from __future__ import annotations

import pytest

from archwright.ascsource import read_source

HEADERS = frozenset(["tl_templates/ascend/common.h"])
GOOD = """\
#include <tl_templates/ascend/common.h>
extern "C" __global__ __vector__ void copy_kernel(__gm__ int32_t* X, int32_t m) {
  asc_init();  // a bracket in a comment: {
  for (int32_t i = 0; i < m; ++i) { X[i] = (int32_t)threadIdx.x; }
}
"""


def test_a_source_as_tilelang_writes_it_has_no_problem() -> None:
    source = read_source(GOOD, HEADERS)

    assert source.problems == ()
    assert source.symbols == ("copy_kernel",)
    assert source.includes == ("tl_templates/ascend/common.h",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("X[i] = (", "X[i = ("), "line 4: } without its partner"),
        (("; }\n}", "; }\n"), "is never closed"),
        (("tl_templates/ascend/common.h", "cuda_runtime.h"), "includes cuda_runtime.h"),
        (('extern "C" __global__ __vector__ ', ""), "no entry symbol"),
        (("asc_init();", "__syncthreads();"), "CUDA's __syncthreads"),
        (("asc_init();", 'asm volatile("wgmma.fence;");'), "CUDA's asm volatile("),
        (("asc_init();", "cudaMalloc(0, 0);"), "CUDA's cudaMalloc"),
        (("asc_init();", "asc_\x01init();"), "a control character"),
    ],
)
def test_what_is_wrong_is_said(change: tuple[str, str], problem: str) -> None:
    text = GOOD.replace(*change)

    assert text != GOOD
    assert any(problem in found for found in read_source(text, HEADERS).problems), read_source(text, HEADERS).problems


def test_a_symbol_stands_there_once() -> None:
    assert "two entry symbols copy_kernel" in read_source(GOOD + GOOD, HEADERS).problems


def test_words_of_cuda_in_a_comment_or_a_text_are_nothing() -> None:
    text = GOOD.replace("asc_init();", 'asc_init(); /* cudaMalloc( */ printf("wgmma (");')

    assert read_source(text, HEADERS).problems == ()
