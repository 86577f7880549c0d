"""The program that serves as many of a few pods as limits allow."""

from __future__ import annotations

import numpy as np

from karpenter.scheduling.search.column_enumeration import CoverProblem
from karpenter.scheduling.search.limited_nodes import nodes_serving_most


def test_nodes_that_take_nothing_of_any_limit_are_divided_like_others() -> None:
    """A NodePool without limits beside a limited one. Pods of 3, 3, 3 and 1 CPU fit on no two nodes of 5; their sum does."""
    problem = CoverProblem(
        counts=np.array([3.0, 1.0]),
        requests=np.array([[3.0], [1.0]]),
        capacities=np.array([[5.0]]),
        costs=np.array([0.2]),
        admits=np.array([[True, True]]),
        baselines=np.array([0.0]),
        cpu_prices=np.array([0.0]),
        cpu_column=-1,
    )
    served = nodes_serving_most(problem, np.zeros((1, 1)), unserved_cost=100.0)
    assert served is not None
    assert sorted(served.columns.contents.tolist()) == [[1, 0], [1, 0], [1, 1]]
    assert served.is_most
