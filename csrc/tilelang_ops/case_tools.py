"""What the case files of TileLang ops share. Nothing here imports torch before a case runs."""

import functools


def per_tokens(model, call, *phases, **shape):
    """One case for each token count of `phases`: `call(tokens, **shape)`."""
    for tokens in model.tokens(*phases):
        yield from one_case(functools.partial(call, tokens, **shape), tokens=tokens, **shape)


def one_case(call, **shape):
    yield shape, call


def swa_block(model):
    """Tokens in a sequence's window ring: worker/cache_engine.py:get_inference_swa_block_size."""
    return model.sliding_window + model.nextn + 1


def blocks_per_sequence(model):
    return -(-model.max_model_len // model.block_size)
