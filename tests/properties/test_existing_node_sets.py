"""Sets of nodes by what is free there: moves fill nodes, and the sets are what a new index of these nodes would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import build_problem
from support.builders import NOW, node_and_claim, node_pool, snapshot
from support.instance_types import STD, index_of

_INDEXES = {"np": index_of(STD)}
_CPU = st.integers(min_value=0, max_value=4)
_AMOUNTS = st.tuples(_CPU, _CPU)


def _existing(amounts: list[tuple[int, int]]) -> tuple[ExistingNode, ...]:
    nodes = [
        node_and_claim(f"n{at}", {"cpu": str(cpu), "memory": f"{memory}Gi", "pods": "9"})
        for at, (cpu, memory) in enumerate(amounts)
    ]
    return PreparedProblem(build_problem(snapshot(node_pool(), nodes), _INDEXES, NOW), _INDEXES).existing_nodes.nodes


def _asked(cpu: int, memory: int) -> Resources:
    return res.parse_resources({"cpu": str(cpu), "memory": f"{memory}Gi"})


_QUESTIONS = [_asked(cpu, memory) for cpu in range(5) for memory in range(5)]


def _answers(index: ExistingNodeIndex) -> list[int]:
    return [index.with_free(asked) for asked in _QUESTIONS]


@given(
    st.lists(_AMOUNTS, min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 5), _AMOUNTS), max_size=12), st.data()
)
def test_after_moves_the_sets_are_those_of_a_new_index(
    amounts: list[tuple[int, int]], moves: list[tuple[int, tuple[int, int]]], data: st.DataObject
) -> None:
    """Until they are made anew they may hold nodes that are full by now, but never miss one."""
    first = index = ExistingNodeIndex(_existing(amounts))
    before = _answers(ExistingNodeIndex(first.nodes))
    for place, taken in moves:
        position = place % len(amounts)
        index = index.with_nodes({position: index.nodes[position].with_bound_pods([], [_asked(*taken)])})
        fresh = _answers(ExistingNodeIndex(index.nodes))
        if data.draw(st.booleans(), "asked before the sets are made anew"):
            assert all(now & ~known == 0 for now, known in zip(fresh, _answers(index), strict=True))
        if data.draw(st.booleans(), "made anew"):
            index = index.with_free_updated()
            assert _answers(index) == fresh
    assert _answers(index.with_free_updated()) == _answers(ExistingNodeIndex(index.nodes))
    assert _answers(first) == before


def test_the_first_index_answers_of_itself_also_if_its_copy_was_asked_first() -> None:
    """Both share answers, which are about what was free before the move."""
    index = ExistingNodeIndex(_existing([(2, 2)]))
    moved = index.with_nodes({0: index.nodes[0].with_bound_pods([], [_asked(2, 2)])})
    asked = _asked(1, 1)
    moved.with_free(asked)
    assert index.with_free(asked) == 1
