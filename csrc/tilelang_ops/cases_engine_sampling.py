"""DeepInfer's own ops around sampling. Those of fused_sample and sampler need the engine's extension, deepinfer._C."""

import functools

from case_tools import per_tokens
from casekit import boolean, empty, float32, int32
from engine_import import op


def sum_smaller_probs(model):
    """layers/sampler.py: probability mass below the sampled token."""

    def call(tokens):
        op("sum_smaller_probs", "get_sum_smaller_probs")(float32(tokens, model.vocab_size), int32(tokens))

    yield from per_tokens(model, call, "decode")


def token_bitmask(model):
    """layers/sampler.py and structure_output/mask.py: apply_token_bitmask_by_step_inplace, with and without steps."""

    def call(tokens, steps):
        logits, mask = float32(tokens, model.vocab_size), int32(tokens, -(-model.vocab_size // 32))
        apply = op("structure_output", "apply_token_bitmask_by_step_inplace")
        apply(logits, mask, int32(tokens), int32(tokens) if steps else None, 0)

    for steps in (False, True):
        yield from per_tokens(model, call, "decode", steps=steps)


def store_mtp_info(model):
    """layers/mtp_info_pool.py: drafts of the whole vocabulary, with and without confidence."""

    def call(requests, confidence):
        nextn, vocab = model.nextn, model.vocab_size
        rows = 2 * nextn
        op("store_mtp_info", "store_mtp_info")(
            int32(requests),
            int32(requests, nextn),
            float32(requests, nextn, vocab),
            None,
            float32(requests, nextn) if confidence else None,
            int32(rows),
            float32(rows, vocab),
            None,
            float32(rows) if confidence else None,
        )

    for confidence in (False, True):
        yield from per_tokens(model, call, "decode", confidence=confidence)


def _transform_inputs(tokens):
    from deepinfer.model_executor.sampling_inputs import LogitsTransformInputs

    return LogitsTransformInputs(float32(tokens), float32(tokens), int32(tokens))


def _sampling_inputs(tokens):
    from deepinfer.model_executor.sampling_inputs import SamplingKernelInputs

    return SamplingKernelInputs(_transform_inputs(tokens), empty(tokens, dtype="uint64"), int32(tokens))


def fused_sample(model):
    """layers/sampler_utils.py: log probabilities of a prompt, plain sampling, and sampling with verified drafts."""

    def call(tokens, form):
        sample = op("fused_sample", "fused_sample")
        vocab, rows = model.vocab_size, 2 * model.nextn
        if form == "logprobs":
            sample(float32(tokens, vocab), _transform_inputs(tokens))
            return
        drafts = {
            "is_verify": boolean(tokens),
            "last_nextn_token_logprobs": float32(rows, vocab),
            "last_next_n_token_ids": int32(rows),
            "mtp_info_read_rows": int32(tokens),
        }
        sample(float32(tokens, vocab), _sampling_inputs(tokens), **(drafts if form == "verify" else {}))

    for form in ("logprobs", "sample", "verify"):
        yield from per_tokens(model, call, "decode", form=form)


def verification(model):
    """layers/sampler.py: prepare_verification_metadata, get_accept_result, finalize_verification, map_lookup;
    sampler_utils.py: expand_sampling_params. With and without golden tokens, probability mass and confidence."""

    def call(requests, optional):
        q, nextn = requests * (model.nextn + 1), model.nextn
        prepare = op("sampler", "prepare_verification_metadata")
        rows, steps, verify = prepare(int32(requests), int32(requests), q, nextn)
        op("sampler", "expand_sampling_params")(_sampling_inputs(requests), rows, steps)
        pool = 2 * nextn
        accept = op("sampler", "get_accept_result")
        golden = int32(q) if optional else None
        tokens, accepted, final = accept(
            boolean(q), golden, int32(pool), int32(q), int32(q), verify, int32(requests), rows
        )
        extra = {
            "accept_probs": float32(q),
            "confidence_pool": float32(pool),
            "mtp_info_read_rows": int32(q),
            "stop_token_ids": int32(requests, 2),
        }
        op("sampler", "finalize_verification")(
            accepted, final, tokens, float32(q), float32(q) if optional else None, None, None, int32(requests),
            int32(requests), rows, verify, nextn, **(extra if optional else {}),
        )  # fmt: skip
        op("sampler", "map_lookup")(None, float32(q, model.vocab_size), int32(q, 1), mode="by_index")

    for optional in (False, True):
        yield from per_tokens(model, call, "decode", optional=optional)


def copy_dflash_decode_input(model):
    """worker/dflash_cuda_graph_runner.py: on the driver and on followers."""

    def call(requests, driver):
        copy = op("dflash_copy", "copy_dflash_decode_input")
        from deepinfer.model_executor.sampling_inputs import MTPDecodeInput

        copy(*(MTPDecodeInput.build_padding(requests, 0, has_driver=driver) for _ in range(3)))

    for driver in (False, True):
        yield from per_tokens(model, call, "decode", driver=driver)


def remap_draft_topk(model):
    """layers/sampler_utils.py, where sampling is forced to the top k (DEEPINFER_SAMPLER_FORCE_TOPK): one k, 1024."""

    def call(tokens, topk):
        rows = 2 * model.nextn
        op("sampler", "remap_draft_topk")(
            int32(rows, topk), float32(rows, topk), int32(rows), int32(tokens, topk), int32(tokens), model.vocab_size
        )
        op("sampler", "map_lookup")(int32(tokens, topk), float32(tokens, topk), int32(tokens, 1), mode="by_key")

    yield from per_tokens(model, functools.partial(call, topk=1024), "decode")
