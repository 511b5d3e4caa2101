"""What the case files of DeepGEMM share: DeepInfer's settings at start, and tensors in the layouts that it passes.

Nothing here imports torch before a case runs.
"""

from casekit import empty, int32

#: Elements that share one scale in mxfp formats, and scales in one packed word.
MX_GROUP, SCALES_IN_WORD = 32, 4


def prepare():
    """DeepGEMM as worker/runtime_config.py and v4_modules/mlp.py set it up before the first call.

    Deterministic algorithms stay off: DeepInfer turns them on only for DEEPINFER_BATCH_INVARIANT, off by default.
    """
    import deep_gemm

    deep_gemm.set_pdl(True)
    alignment = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    return deep_gemm


def padded(count, multiple):
    return -(-count // multiple) * multiple


def scales(rows, columns, granularity, *groups):
    """Packed ue8m0 scales as the kernels want them: column-major, columns padded to 16 bytes."""
    words = -(-columns // (granularity * SCALES_IN_WORD))
    return int32(*groups, words, padded(rows, 4)).mT[..., :rows, :]


def fp8(rows, columns, granularity, *groups):
    """An e4m3 operand and its scales."""
    values = empty(*groups, rows, columns, dtype="float8_e4m3fn")
    return values, scales(rows, columns, granularity, *groups)


def fp4(rows, columns, *groups):
    """An e2m1 operand, two values a byte, and its scales."""
    return empty(*groups, rows, columns // 2, dtype="int8"), scales(rows, columns, MX_GROUP, *groups)


def aligned_output(rows, columns, dtype="bfloat16"):
    """layers/linear.py, _allocate_output: rows start at multiples of 16 bytes."""
    import torch

    elements = 16 // getattr(torch, dtype).itemsize
    return empty(rows, padded(columns, elements), dtype=dtype)[:, :columns]
