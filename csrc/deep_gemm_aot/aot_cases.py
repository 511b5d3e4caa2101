"""DeepInfer's calls into DeepGEMM, with its argument forms: one function an operation (csrc/aot/worker.py).

Values do not matter, since nothing is computed; shapes, strides and types choose the kernels. This file has the plain
matrix products and layouts; mixture of experts and the indexer have files of their own.
"""

import functools

from case_tensors import MX_GROUP, aligned_output, fp8, padded, prepare, scales
from casekit import empty, float32, int32
from cases_index import (
    fp8_fp4_mqa_logits,
    fp8_fp4_paged_mqa_logits,
    fp8_fp4_paged_sparse_mqa_logits,
    fp8_fp4_sparse_mqa_logits,
)
from cases_moe import (
    bf16_mega_gate,
    bf16_mega_moe,
    fp8_fp4_mega_moe,
    m_grouped_bf16_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_contiguous,
    transform_weights_for_mega_moe,
)

__all__ = [
    "bf16_gemm_nt",
    "bf16_mega_gate",
    "bf16_mega_moe",
    "cublaslt_gemm_nt",
    "fp8_einsum",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_mega_moe",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_fp4_paged_sparse_mqa_logits",
    "fp8_fp4_sparse_mqa_logits",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "mega_mhc",
    "tf32_hc_prenorm_gemm",
    "transform_sf_into_required_layout",
    "transform_weights_for_mega_moe",
]

#: vision_encoder/vit.py: EMBED_DIM, and MLP_RATIO of it rounded up to MULTIPLE_OF. They do not vary with the model.
VIT_DIM, VIT_MLP = 1024, 2816
#: v4_modules/mhc_ops.py: N_SPLITS_CUDA.
MHC_SPLITS = 16


def _per_size(model, call, sizes):
    for n, k in sorted(sizes):
        for m in model.tokens():
            yield {"m": m, "n": n, "k": k}, functools.partial(call, m, n, k)


def _attention_sizes(model):
    """v4_modules/attn.py and models/mtp/dflash.py: (out, in) of the fp8 projections around attention."""
    q_b = model.num_attention_heads * model.head_dim
    return {
        (model.q_lora_rank + model.head_dim, model.hidden_size),  # q_a and the window's kv, fused
        (model.q_lora_rank, model.hidden_size),  # q_a alone, where kv comes from the shared hidden state
        (model.head_dim, model.hidden_size),  # that kv
        (q_b, model.q_lora_rank),
        (q_b + model.index_n_heads * model.index_head_dim, model.q_lora_rank),  # layers with an indexer
        (model.hidden_size, model.o_groups * model.o_lora_rank),
        (model.hidden_size, model.dspark_target_layers * model.hidden_size),  # DFlash: features of the target
    }


def fp8_fp4_gemm_nt(model):
    """layers/linear.py, ReplicatedLinear.apply_weight_fp8: every fp8 projection and the shared expert."""
    shared = model.n_shared_experts * model.moe_intermediate_size
    sizes = _attention_sizes(model) | {
        (2 * shared, model.hidden_size),
        (model.hidden_size, shared),
        ((model.hc_mult + 1) * model.hidden_size, _engram_width(model)),
    }
    gran = model.fp8_granularity

    def call(m, n, k):
        prepare().fp8_fp4_gemm_nt(fp8(m, k, gran), fp8(n, k, gran), aligned_output(m, n), None, recipe=(1, 1, gran))

    yield from _per_size(model, call, sizes)


def _engram_width(model):
    """v4_modules/engram_parameters.py: all heads of all n-grams, which start at two words."""
    return (model.engram_max_ngram_size - 1) * model.engram_n_heads * model.engram_head_dim


def bf16_gemm_nt(model):
    """layers/linear.py (bf16 weights), layers/sampler_utils.py (logits) and vision_encoder/vit.py (no bias)."""
    hidden = model.hidden_size
    float_outputs = {
        (model.vocab_size, hidden),  # get_logits
        (model.vocab_size, model.dspark_markov_rank),  # DFlash: markov_w2
        (2 * model.head_dim, hidden),  # a compressor with gate
        (2 * model.head_dim + model.index_n_heads, hidden),  # and the indexer's weights, fused
    }
    outputs = {
        (model.head_dim, hidden),  # a compressor without gate
        (model.head_dim + model.index_n_heads, hidden),
        (model.index_n_heads, hidden),
        (model.index_head_dim, model.head_dim),  # the indexer's k_proj
        (1, hidden + model.dspark_markov_rank),  # DFlash: confidence head
        (2 * VIT_MLP, VIT_DIM),
        (VIT_DIM, VIT_MLP),
    }

    def call(m, n, k, dtype):
        prepare().bf16_gemm_nt(empty(m, k), empty(n, k), aligned_output(m, n, dtype), None)

    for dtype, sizes in (("bfloat16", outputs), ("float32", float_outputs)):
        for shape, case in _per_size(model, functools.partial(call, dtype=dtype), sizes):
            yield shape | {"out": dtype}, case


def cublaslt_gemm_nt(model):
    """vision_encoder/vit.py, _linear on anything but SM100: cuBLASLt's own kernels, none of DeepGEMM's."""

    def call(m, n, k):
        prepare().cublaslt_gemm_nt(empty(m, k), empty(n, k), empty(m, n), None)

    yield from _per_size(model, call, {(2 * VIT_MLP, VIT_DIM), (VIT_DIM, VIT_MLP)})


def fp8_einsum(model):
    """v4_modules/attn.py, _wv_and_o_proj: fp8 output with scales for granularity 32, else bf16."""
    gran, groups, rank = model.fp8_granularity, model.o_groups, model.o_lora_rank
    width = model.num_attention_heads // groups * model.head_dim

    def call(m):
        values = empty(m, groups, width, dtype="float8_e4m3fn")
        context = values, scales(m, width, gran, groups).permute(1, 0, 2)
        out = empty(m, groups, rank)
        if gran == MX_GROUP:
            out = empty(m, groups, rank, dtype="float8_e4m3fn"), scales(m, groups * rank, gran)
        weight = fp8(rank, width, gran, groups)
        prepare().fp8_einsum("bhr,hdr->bhd", context, weight, out, recipe=(1, 1, gran))

    for m in model.tokens():
        yield {"b": m, "h": groups, "r": width, "d": rank}, functools.partial(call, m)


def tf32_hc_prenorm_gemm(model):
    """v4_modules/mhc_ops.py, mhc_prenorm_gemm: the mixes of the hyper-connections, split along k."""
    k, n = model.hc_mult * model.hidden_size, model.hc_mult * (2 + model.hc_mult)

    def call(m):
        out, squares = float32(MHC_SPLITS, m, n), float32(MHC_SPLITS, m)
        prepare().tf32_hc_prenorm_gemm(empty(m, k), float32(n, k), out, squares, MHC_SPLITS)

    for m in model.tokens():
        yield {"m": m, "n": n, "k": k, "splits": MHC_SPLITS}, functools.partial(call, m)


def mega_mhc(model):
    """v4_modules/hc.py, _mega_mhc: before attention (scales for the next product) and before the experts.

    `shifted` is the model's hc_shifted; the output before the experts goes to the symmetric buffer of mega MoE.
    """
    for shifted in (False, True):
        for consumer in ("gemm", "mega_moe") if model.fp8_granularity == MX_GROUP else ("mega_moe",):
            for m in model.tokens():
                call = functools.partial(_mega_mhc, model, m, shifted, consumer)
                yield {"m": m, "shifted": shifted, "consumer": consumer}, call


def _mega_mhc(model, m, shifted, consumer):
    deep_gemm = prepare()
    hc, hidden = model.hc_mult, model.hidden_size
    outputs = {"y_fp8": empty(m, hidden, dtype="float8_e4m3fn")}
    if consumer == "gemm":
        outputs["y_gemm_sf"] = scales(m, hidden, MX_GROUP)
    else:
        largest = max(model.tokens())
        block = deep_gemm.get_block_m_for_mega_moe(
            *(model.expert_parallel_size, model.n_routed_experts, largest, m, model.num_experts_per_tok, "fp8xfp4")
        )
        # Rows of the shared expert's scales are in blocks that are padded to 128 (layers/tilelang_ops/norm.py).
        rows = padded(-(-m // block) * padded(block, 128), 128)
        outputs["y_routed_sf"] = int32(m, hidden // (MX_GROUP * 4))
        outputs["y_shared_sf"] = int32(hidden // (MX_GROUP * 4), rows).mT[:m]
        outputs["shared_sf_block_m"] = block
    deep_gemm.mega_mhc(
        *(empty(m, hidden), empty(m, hc, hidden), float32(m, hc, 1) if shifted else None),
        *(float32(m, hc, 1), float32(m, hc, hc)),
        fn=float32(hc * (2 + hc), hc * hidden),
        mix_scales=float32(3),
        mix_bases=float32(hc * (2 + hc)),
        hc_mult=hc,
        hc_norm_eps=1e-6,
        hc_pre_eps=1e-6,
        hc_post_scale=2.0,
        sinkhorn_eps=1e-6,
        num_sinkhorn_iters=model.hc_sinkhorn_iters,
        rmsnorm_weight=empty(hidden),
        rmsnorm_eps=1e-6,
        rmsnorm_scale=1.0,
        new_residual=empty(m, hc, hidden),
        new_prev_mix=float32(m, hc, 1) if shifted else None,
        new_post_mix=float32(m, hc, 1),
        new_comb_res_mix=float32(m, hc, hc),
        y_bf16=empty(m, hidden),
        **outputs,
    )


def transform_sf_into_required_layout(model):
    """layers/linear.py, v4_modules/attn.py (wv) and v4_modules/mlp.py (experts): a checkpoint's float32 scales."""
    gran, experts = model.fp8_granularity, model.n_routed_experts // model.expert_parallel_size
    shared = model.n_shared_experts * model.moe_intermediate_size
    plain = _attention_sizes(model) | {(2 * shared, model.hidden_size), (model.hidden_size, shared)}
    width = model.num_attention_heads // model.o_groups * model.head_dim
    sizes = [(None, n, k) for n, k in sorted(plain)]
    sizes.append((experts, 2 * model.moe_intermediate_size, model.hidden_size))
    sizes.append((experts, model.hidden_size, model.moe_intermediate_size))

    def call(groups, n, k, rows, recipe):
        shape = () if groups is None else (groups,)
        sf = float32(*shape, n // rows, k // recipe[2])
        prepare().transform_sf_into_required_layout(sf, n, k, recipe=recipe, num_groups=groups, is_sfa=False)

    for groups, n, k in sizes:
        yield {"groups": groups or 1, "n": n, "k": k}, functools.partial(call, groups, n, k, gran, (1, gran, gran))
    # Attention's wv has its scales repeated first: one for each row.
    yield (
        {"groups": model.o_groups, "n": model.o_lora_rank, "k": width, "rows": 1},
        functools.partial(call, model.o_groups, model.o_lora_rank, width, 1, (1, 1, MX_GROUP)),
    )
