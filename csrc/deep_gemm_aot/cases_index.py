"""DeepGEMM's kernels of the indexer as DeepInfer calls them (model_executor/models/v4_modules/index_attn.py)."""

import functools

from case_tensors import padded, prepare
from casekit import COMPRESS_RATIOS, empty, int32

#: layers/tilelang_ops/cache_common.py, FP4_INDEX_KV_FORMAT: bytes of scales of one token.
SCALE_BYTES = 4
#: index_attn.py: queries of one chunk at most, whatever the memory limit is.
CHUNK = 8192


def _query(model, m, *middle):
    """fp4 queries of `m` tokens, and their scales; the weights of the heads with padded rows."""
    heads, dim = model.index_n_heads, model.index_head_dim
    values = empty(m, *middle, heads, dim // 2, dtype="int8")
    weights = empty(m, padded(heads, 8))[:, :heads]
    return (values, int32(m, *middle, heads)), weights


def _contiguous(model, total):
    return empty(total, model.index_head_dim // 2, dtype="int8"), int32(total)


def _paged(model, ratio, pages):
    width = model.index_head_dim // 2 + SCALE_BYTES
    return empty(pages, model.block_size // ratio, 1, width, dtype="uint8")


def _cases(model, call, phase, blocks=False):
    """Per compression ratio and token count. `blocks`: with the size of a candidate block at that ratio."""
    for ratio in COMPRESS_RATIOS:
        if not blocks:
            sizes = [{}]
        elif model.candidate_block_size % ratio or model.candidate_block_size // ratio not in (8, 16):
            continue  # index_attn.py asserts 8 or 16
        else:
            sizes = [{"candidate_block": model.candidate_block_size // ratio}]
        for size in sizes:
            for tokens in model.tokens(phase):
                shape = {"tokens": tokens, "ratio": ratio} | size
                yield shape, functools.partial(call, tokens, ratio, **size)


def fp8_fp4_mqa_logits(model):
    """_compute_prefill_p_sum, dense."""

    def call(tokens, ratio):
        m = min(tokens, CHUNK)
        longest = model.max_model_len // ratio
        query, weights = _query(model, m)
        prepare().fp8_fp4_mqa_logits(
            *(query, _contiguous(model, longest), weights, int32(m), int32(m)), max_seqlen_k=longest
        )

    yield from _cases(model, call, "prefill")


def fp8_fp4_sparse_mqa_logits(model):
    """_get_sparse_prefill_metadata and _compute_prefill_p_sum with candidate blocks."""

    def call(tokens, ratio, candidate_block):
        deep_gemm, m = prepare(), min(tokens, CHUNK)
        blocks, total = model.candidate_topk_blocks, model.max_model_len // ratio
        query, weights = _query(model, m)
        plan = deep_gemm.get_sparse_mqa_logits_metadata(
            *(int32(m), int32(m), total, int32(m, blocks), query[0].dtype, candidate_block), use_unaligned_ks=True
        )
        deep_gemm.fp8_fp4_sparse_mqa_logits(
            *(query, _contiguous(model, total), weights, plan, blocks, candidate_block), use_unaligned_ks=True
        )

    yield from _cases(model, call, "prefill", blocks=True)


def fp8_fp4_paged_mqa_logits(model):
    """_get_decode_metadata and _compute_decode_p_sum, dense."""

    def call(tokens, ratio):
        deep_gemm = prepare()
        longest, pages = model.max_model_len // ratio, model.max_model_len // model.block_size
        query, weights = _query(model, tokens, 1)
        lengths, owners = int32(tokens, 1), int32(tokens)
        plan = deep_gemm.get_paged_mqa_logits_metadata(
            lengths, model.block_size // ratio, deep_gemm.get_num_sms(), indices=owners
        )
        cache, table = _paged(model, ratio, pages), int32(tokens, pages)
        deep_gemm.fp8_fp4_paged_mqa_logits(query, cache, weights, lengths, table, plan, longest, indices=owners)

    yield from _cases(model, call, "decode")


def fp8_fp4_paged_sparse_mqa_logits(model):
    """_get_decode_metadata and _compute_decode_p_sum with candidate blocks."""

    def call(tokens, ratio, candidate_block):
        deep_gemm, pages, blocks = prepare(), model.max_model_len // model.block_size, model.candidate_topk_blocks
        query, weights = _query(model, tokens, 1)
        plan = deep_gemm.get_paged_sparse_mqa_logits_metadata(
            *(int32(tokens), int32(tokens, pages), int32(tokens), model.block_size // ratio),
            *(int32(tokens, blocks), query[0].dtype, candidate_block),
        )
        deep_gemm.fp8_fp4_paged_sparse_mqa_logits(
            query, _paged(model, ratio, pages), weights, plan, blocks, candidate_block
        )

    yield from _cases(model, call, "decode", blocks=True)
