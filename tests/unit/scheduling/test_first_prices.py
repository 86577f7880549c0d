"""The linear program behind first prices, where nodes and pods make too many pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from karpenter.scheduling.search import lower_bound


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 12), st.integers(1, 200))
def test_nodes_that_are_left_out_leave_every_pod_a_node(seed: int, nodes: int, pods: int, max_pairs: int) -> None:
    random = np.random.default_rng(seed)
    admits = random.random((nodes, pods)) < 0.3
    admits[random.integers(nodes, size=pods), np.arange(pods)] = True
    prices = random.random(nodes)
    chosen = lower_bound._evenly_by_price(prices, admits, max_pairs)
    assert admits[chosen].any(axis=0).all()
    assert len(chosen) == len(set(chosen.tolist()))
    assert len(chosen) <= max(2, max_pairs // pods) + pods


def test_the_cheapest_and_the_most_expensive_node_stay() -> None:
    prices = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    chosen = lower_bound._evenly_by_price(prices, np.ones((5, 2), dtype=bool), 6)
    assert sorted(prices[chosen].tolist()) == [1.0, 3.0, 5.0]
