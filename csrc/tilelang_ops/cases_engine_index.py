"""DeepInfer's own ops on indices, metadata and embeddings."""

from case_tools import blocks_per_sequence, per_tokens, swa_block
from casekit import COMPRESS_RATIOS, boolean, empty, float32, int32
from cases_tile_kernels import VIT_DIM
from engine_import import op


def gather(model):
    """Rows of anything: hidden states, embeddings, positions, masks, n-grams, keys (fifteen callers). Bytewise."""
    widths = {
        (1, "bool"),
        (1, "int32"),
        (model.engram_max_ngram_size, "int32"),
        (model.hidden_size, "bfloat16"),
        (model.hc_mult * model.hidden_size, "bfloat16"),
        (model.head_dim, "bfloat16"),
        (2 * model.head_dim, "float32"),
    }

    def call(tokens, width, dtype):
        x = empty(max(tokens, 2), width, dtype=dtype)
        op("gather", "gather")(x.squeeze(1) if width == 1 else x, int32(tokens))

    for width, dtype in sorted(widths):
        yield from per_tokens(model, call, width=width, dtype=dtype)


def kv_index(model):
    """input_metadata.py: get_kv_swa_index_decode, get_kv_ca_index_decode and get_kv_ca_index_prefill."""

    def window(tokens):
        get = op("get_kv_index", "get_kv_swa_index_decode")
        get(int32(tokens, 2), model.sliding_window, swa_block(model))

    def compressed(tokens, ratio, decode):
        width = (model.max_model_len // ratio + 127) // 128 * 128
        if decode:
            get = op("get_kv_index", "get_kv_ca_index_decode")
            get(int32(tokens, 2), width, model.block_size // ratio, int32(tokens, blocks_per_sequence(model)))
        else:
            op("get_kv_index", "get_kv_ca_index_prefill")(int32(tokens, 2), width)

    yield from per_tokens(model, window, "decode")
    for ratio in COMPRESS_RATIOS:
        yield from per_tokens(model, compressed, "decode", ratio=ratio, decode=True)
        yield from per_tokens(model, compressed, "decode", ratio=ratio, decode=False)


def expand_swa_index(model):
    """input_metadata.py: the window's indices of a prefill."""

    def call(tokens):
        op("swa_index", "expand_swa_index")(int32(tokens, 4), model.sliding_window)

    yield from per_tokens(model, call, "prefill")


def kv_index_cat(model):
    """attn.py: window and selected indices side by side."""

    def call(tokens):
        op("kv_index_cat", "kv_index_cat")(
            int32(tokens, model.sliding_window), int32(tokens, model.index_topk), 0, tokens
        )

    yield from per_tokens(model, call, "prefill")


def convert_kv_index(model):
    """index_attn.py: selected tokens to cache slots."""

    def call(tokens, ratio):
        op("flash_mla_utils", "convert_kv_index")(
            int32(tokens, 1, model.index_topk),
            model.block_size // ratio,
            int32(tokens, 1),
            int32(tokens, blocks_per_sequence(model)),
        )

    for ratio in COMPRESS_RATIOS:
        yield from per_tokens(model, call, "decode", ratio=ratio)


def _candidate_blocks(model):
    """Tokens in a candidate block: upstream has 8 and 16; consumers of another ratio see half of it."""
    return sorted({model.candidate_block_size // ratio for ratio in COMPRESS_RATIOS} & {8, 16})


def candidate_block_max(model):
    """index_attn.py:_topk_candidate_block in decode. The width of the scores is compiled in.

    In prefill it is the longest context of the batch: any number, which no pack can cover.
    """

    def call(tokens, block, width):
        op("candidate_blocks", "candidate_block_max")(empty(tokens, width), int32(tokens), block)

    for ratio in COMPRESS_RATIOS:
        if model.candidate_block_size // ratio in (8, 16):
            width, block = model.max_model_len // ratio, model.candidate_block_size // ratio
            yield from per_tokens(model, call, "decode", block=block, width=width)


def candidate_indices(model):
    """index_attn.py: get_candidate_compact_lens and restore_candidate_indices_inplace."""

    def call(tokens, block, offset):
        candidates = int32(tokens, model.candidate_topk_blocks)
        op("candidate_blocks", "get_candidate_compact_lens")(candidates, int32(tokens), block)
        restore = op("candidate_blocks", "restore_candidate_indices_inplace")
        restore(int32(tokens, model.index_topk), candidates, block, int32(tokens) if offset else None)

    for block in _candidate_blocks(model):
        for offset in (False, True):
            yield from per_tokens(model, call, block=block, offset=offset)


def prepare_cp_mirror(model):
    """input_metadata.py and yoco.py: prepare_cp_mirror and yoco_cp_boundary_fused, with context parallelism."""

    def call(tokens, size):
        length = -(-tokens // size)
        lengths = int32(2), int32(2)
        mirror = op("prepare_cp_mirror", "prepare_cp_mirror")
        mirror(*lengths, size, 0, COMPRESS_RATIOS, tokens, length)
        mirror(*lengths, size, 0, (1,), tokens, length)
        op("prepare_cp_mirror", "yoco_cp_boundary_fused")(*lengths, size, 0, tokens, length)

    yield from per_tokens(model, call, "prefill", size=model.context_parallel_size)


def prepare_v4_decode_metadata(model):
    """prepare_tensor_input_zos.py:prepare_decode_v4_zos."""

    def call(tokens):
        ratios, blocks, n = COMPRESS_RATIOS, blocks_per_sequence(model), tokens
        op("prepare_v4_decode_metadata", "prepare_v4_decode_metadata")(
            int32(n), int32(n), int32(n), int32(n * blocks), int32(n + 1), int32(n), boolean(n), int32(n), boolean(n),
            boolean(n), boolean(n), int32(n), int32(len(ratios), n), int32(1, n, 2), int32(n, 2), int32(n), int32(n),
            int32(n), int32(n, blocks), int32(len(ratios), n), int32(len(ratios), n),
            max_seqlen_q=model.nextn + 1,
            max_num_blocks=blocks,
            window_size=model.sliding_window,
            swa_block_size=swa_block(model),
            block_size=model.block_size,
            ca_ratios=ratios,
            dense_ratios=(),
            sparse_ratios=ratios,
        )  # fmt: skip

    yield from per_tokens(model, call, "decode")


def decode_inputs(model):
    """prepare_tensor_input_zos.py: gather_input_ids_zos, gather_engram_tokens_zos; worker.py: compute_seqlens_*."""
    nextn, ngram = model.nextn, model.engram_max_ngram_size

    def call(requests):
        n, q = requests, requests * (nextn + 1)
        ids = op("gather_input_ids_zos", "gather_input_ids_zos")
        ids(
            int32(n, nextn + 1),
            int32(n),
            int32(n, nextn),
            int32(n),
            int32(n),
            int32(n),
            int32(q),
            max_seqlen_q=nextn + 1,
        )
        op("gather_engram_tokens_zos", "gather_engram_tokens_zos")(
            int32(n, nextn + ngram - 1), int32(n, nextn + 1), int32(n), int32(n, nextn), int32(n), int32(n),
            int32(model.vocab_size), int32(n), int32(n), int32(q, ngram),
            max_seqlen_q=nextn + 1,
            max_ngram_size=ngram,
            engram_compressed_pad_token=model.engram_pad_token,
            image_sentinel=-1,
        )  # fmt: skip
        op("compute_seqlens_k_zos", "compute_seqlens_k_zos")(int32(n), int32(n), int32(n), int32(n), nextn=nextn)
        rates = op("schedule_mtp_varlen", "compute_seqlens_q_by_confidence_rates")
        rates(q, int32(n), float32(n, nextn), int32(n))

    yield from per_tokens(model, call, "decode")


def dflash(model):
    """DFlash drafts: models/mtp/dflash.py, decoder_layer.py, input_metadata/dflash.py."""

    def inputs(tokens, mask):
        op("get_kv_index", "get_fused_dflash_get_input")(
            int32(tokens), int32(tokens), int32(tokens), int32(tokens), swa_block(model), model.dspark_block_size,
            model.sliding_window, has_valid_token_mask=mask, has_gate_force_random=mask,
        )  # fmt: skip

    def confidence(tokens, markov):
        hidden, rank = model.hidden_size, model.dspark_markov_rank
        emb = empty(tokens, rank) if markov else None
        weight = empty(hidden + (rank if markov else 0), 1)
        op("dflash", "confidence_head_fused")(empty(tokens, hidden), weight, 1.0, markov_emb=emb)

    def store(tokens):
        hidden = model.hidden_size
        out = empty(tokens, model.dspark_target_layers * hidden)[:, :hidden]
        op("dflash", "dflash_input_store")(empty(tokens, model.hc_mult, hidden), out)

    for mask in (False, True):
        yield from per_tokens(model, inputs, "decode", mask=mask)
    for markov in (False, True):
        yield from per_tokens(model, confidence, "decode", markov=markov)
    yield from per_tokens(model, store)


def image_embeds(model):
    """vision_encoder/vl_aligner.py: rgb_pad_to_patches, batch_downsample and replace_input_embeds."""

    def call(tokens):
        import torch

        ratio = model.vision_downsample_ratio
        crops = torch.full((1, 2), ratio, dtype=torch.int64, device="cuda")
        patches = op("image_embed_ops", "rgb_pad_to_patches")
        sizes = int32(1, 2)
        patches(
            empty(4096, dtype="uint8"), empty(2, dtype="int64"), sizes, sizes, int32(2), tokens, 14, 0.5, 0.5, 127.0
        )
        downsample = op("image_embed_ops", "batch_downsample")
        downsample(empty(tokens, VIT_DIM), crops, ratio, "downsample_mlp_gelu", num_downsampled_patch=1)
        op("image_embed_ops", "replace_input_embeds")(
            empty(tokens, model.hidden_size), int32(tokens), empty(1, model.hidden_size), 2, int32(2),
            empty(2, model.hidden_size),
        )  # fmt: skip

    yield from per_tokens(model, call, "prefill")
