"""DeepInfer's calls into DeepGEMM, with its argument forms: one function an operation (csrc/aot/worker.py).

Values do not matter, since nothing is computed; shapes, strides and types choose the kernels.
"""

from functools import partial


def _pdl():
    """As DeepInfer's worker/runtime_config.py sets it before it loads a model."""
    import deep_gemm

    deep_gemm.set_pdl(True)


def _fp8(rows, columns, granularity, groups=()):
    """An fp8 operand with packed ue8m0 scales in the layout that the kernels want (column-major, rows padded to 4)."""
    import torch

    values = torch.empty(*groups, rows, columns, device="cuda", dtype=torch.float8_e4m3fn)
    padded = (rows + 3) // 4 * 4
    scales = torch.empty(*groups, columns // granularity // 4, padded, device="cuda", dtype=torch.int32)
    return values, scales.mT[..., :rows, :]


def _bf16(*shape):
    import torch

    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)


def fp8_fp4_gemm_nt(model):
    """layers/linear.py, ReplicatedLinear.apply_weight_fp8: q_a, q_b and the two matrices of a shared expert."""
    import deep_gemm

    _pdl()
    width = model.num_attention_heads * model.head_dim
    shapes = {
        (model.q_lora_rank, model.hidden_size),
        (width, model.q_lora_rank),
        (2 * model.moe_intermediate_size, model.hidden_size),
        (model.hidden_size, model.moe_intermediate_size),
    }
    gran = model.fp8_granularity

    def call(m, n, k):
        deep_gemm.fp8_fp4_gemm_nt(_fp8(m, k, gran), _fp8(n, k, gran), _bf16(m, n), None, recipe=(1, 1, gran))

    for n, k in sorted(shapes):
        for m in model.tokens():
            yield {"m": m, "n": n, "k": k}, partial(call, m, n, k)


def m_grouped_fp8_fp4_gemm_nt_contiguous(model):
    """models/v4_modules/mlp.py, _grouped_gemm: the two matrices of the routed experts, fp8 by fp8."""
    import deep_gemm
    import torch

    _pdl()
    experts = model.n_routed_experts // model.expert_parallel_size
    gran = model.fp8_granularity
    alignment = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)

    def call(m, n, k, expected):
        counts = torch.empty(experts, device="cuda", dtype=torch.int32)
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            _fp8(m, k, gran),
            _fp8(n, k, gran, groups=(experts,)),
            _bf16(m, n),
            counts,
            recipe_a=(1, gran),
            recipe_b=(1, gran),
            use_psum_layout=True,
            expected_m_for_psum_layout=expected,
        )

    sizes = ((2 * model.moe_intermediate_size, model.hidden_size), (model.hidden_size, model.moe_intermediate_size))
    for n, k in sizes:
        for tokens in model.tokens():
            expected = max(1, tokens * model.num_experts_per_tok // model.n_routed_experts)
            m = experts * alignment + (tokens * model.num_experts_per_tok + alignment - 1) // alignment * alignment
            yield {"tokens": tokens, "m": m, "n": n, "k": k, "expected_m": expected}, partial(call, m, n, k, expected)


def tf32_hc_prenorm_gemm(model):
    """models/v4_modules/mhc_ops.py: the mixes of the hyper-connections, split along k (N_SPLITS_CUDA)."""
    import deep_gemm
    import torch

    _pdl()
    k, n, splits = model.hc_mult * model.hidden_size, model.hc_mult * (2 + model.hc_mult), 16

    def call(m):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float32)
        out, squares = torch.empty(splits, m, n, device="cuda"), torch.empty(splits, m, device="cuda")
        deep_gemm.tf32_hc_prenorm_gemm(_bf16(m, k), weight, out, squares, splits)

    for m in model.tokens():
        yield {"m": m, "n": n, "k": k, "splits": splits}, partial(call, m)


def transform_sf_into_required_layout(model):
    """layers/linear.py, ReplicatedLinear: scales of a checkpoint, float32, into the layout of the kernels."""
    import deep_gemm
    import torch

    gran = model.fp8_granularity

    def call(n, k):
        scales = torch.empty(n // gran, k // gran, device="cuda", dtype=torch.float32)
        deep_gemm.transform_sf_into_required_layout(scales, n, k, recipe=(1, gran, gran), is_sfa=False)

    for n, k in ((model.q_lora_rank, model.hidden_size), (2 * model.moe_intermediate_size, model.hidden_size)):
        yield {"n": n, "k": k}, partial(call, n, k)
