"""Section C of the fault log through the classes: counts and block edges."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from support.engine import POISON, Engine, Request
from support.stores import manifests, shards

from mooncake_trtllm import _native

MakeEngine = Callable[..., Engine]
BLOCK = 8
TOKENS = [int(t) for t in np.random.default_rng(44).integers(0, 32000, 10 * BLOCK + 1)]
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 10 * BLOCK)
_ids = itertools.count(1)


@pytest.mark.parametrize("length", LENGTHS)
def test_b18_one_token_is_left_to_compute(length: int, make_engine: MakeEngine) -> None:
    """Everything is stored, whatever the local match: what is offered is also what is loaded."""
    engine = make_engine()
    engine.serve(Request(next(_ids), TOKENS))
    for computed in {0, BLOCK, length - 1, length}:
        one = Request(next(_ids), TOKENS[:length])
        bound = one.bound()
        offered, is_async = engine.scheduler.get_num_new_matched_tokens(bound, computed)
        assert is_async is False
        assert offered >= 0
        assert offered % BLOCK == 0
        assert offered == 0 or computed + offered <= length - 1
        if computed == 0:
            assert offered == (length - 1) // BLOCK * BLOCK
        engine.scheduler.update_state_after_alloc(bound, list(range(-(-length // BLOCK))))
        plan = engine.scheduler.build_connector_meta(SimpleNamespace())
        loads = _native.decode_step_plan(plan).loads
        first = computed // BLOCK
        assert [page for _, _, page in loads] == list(range(first, first + offered // BLOCK))
        engine.scheduler.request_finished(bound, [])


def test_b19_a_promise_is_whole_blocks(make_engine: MakeEngine) -> None:
    """Two blocks and three tokens are known: the third block is computed from its first token."""
    engine = make_engine()
    engine.serve(Request(next(_ids), TOKENS[: 2 * BLOCK + 3]))
    assert engine.serve(Request(next(_ids), TOKENS[: 4 * BLOCK])) == 2


def test_b20_an_offer_that_is_honoured_less_is_loaded_less(make_engine: MakeEngine) -> None:
    """The prompt ends on a block's edge, and the runtime takes one block less than offered."""
    engine = make_engine()
    engine.serve(Request(next(_ids), TOKENS))
    one = Request(next(_ids), TOKENS[: 6 * BLOCK])
    bound = one.bound()
    offered, _ = engine.scheduler.get_num_new_matched_tokens(bound, 0)
    assert offered == 5 * BLOCK
    engine.scheduler.cancel_load(bound, 4 * BLOCK, 5 * BLOCK)
    pages = list(range(10, 16))
    engine.scheduler.update_state_after_alloc(bound, pages)
    engine.worker.bind_connector_meta(engine.plan(one, 4, pages))
    engine.worker.start_load_kv(None)
    engine.verify(one, pages[:4])
    assert (engine.pools[0].bytes[pages[4:]] == POISON).all()
    engine.compute(one, pages, 4)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.serve(Request(next(_ids), TOKENS)) == 10


def test_b21_a_tail_is_never_stored(make_engine: MakeEngine) -> None:
    """Prompts of every length up to three blocks: as many objects as whole blocks."""
    engine = make_engine()
    whole = 0
    for length in range(1, 3 * BLOCK + 1):
        tokens = [100 * length + i for i in range(length)]
        assert engine.serve(Request(next(_ids), tokens)) == 0
        whole += length // BLOCK
        assert (len(shards(engine)), len(manifests(engine))) == (whole, whole)
