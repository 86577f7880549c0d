"""Nodes for as many of a few pods as limits allow: an integer program over nodes and the pods on them.

It is asked where generated columns serve fewer pods than the linear program says could be served (`limited_program`). Its
variables are how many nodes of each candidate to take, how many pods of each group are on them, and how many are not served.
Equal nodes are one variable, so they are not symmetric, and their capacity counts as a sum. Where the pods do not divide among
such nodes, each of these becomes a candidate of its own and the program is solved again: then nothing is left to divide, so the
answer is exact as far as the search tree goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.scheduling.search.column_enumeration import CoverProblem, NodeColumns
from karpenter.scheduling.search.linear_program import (
    FloatArray,
    IntArray,
    IntegerProgram,
    solve_integer_program,
)
from karpenter.scheduling.search.node_program import NodeVariables, divide_among_equal_nodes, sparse_columns

#: Pods, pairs of group and candidate, and nodes of the search tree.
MAX_PODS, MAX_ASSIGNMENTS, MAX_TREE_NODES = 30, 500, 200
#: Equal nodes that become candidates of their own, and how often that is done.
MAX_SINGLE_NODES, MAX_DIVISIONS = 16, 6
_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class ServedPods:
    """Nodes with their pods. ``is_most``: no other nodes within the limits serve more pods."""

    columns: NodeColumns
    is_most: bool


def nodes_serving_most(problem: CoverProblem, limit_shares: FloatArray, unserved_cost: float) -> ServedPods | None:
    """The nodes that serve the most pods; None where pods or candidates are too many, or the work ends before any are known.

    ``limit_shares``: what each node takes of each limit, as a part of what is left of it.
    """
    if problem.counts.sum() > MAX_PODS or int(problem.admits.sum()) > MAX_ASSIGNMENTS:
        return None
    candidates, single = np.arange(len(problem.costs)), np.zeros(len(problem.costs), dtype=bool)
    for _ in range(MAX_DIVISIONS):
        solution = _solve(problem, limit_shares, unserved_cost, candidates, single)
        if solution is None:
            return None
        counts, assigned, is_optimal = solution
        contents = [
            divide_among_equal_nodes(problem, int(candidates[at]), int(counts[at]), assigned[at])
            for at in range(len(candidates))
        ]
        undivided = [at for at, nodes in enumerate(contents) if nodes is None]
        if not undivided:
            rows = np.concatenate([nodes for nodes in contents if nodes is not None])
            nodes = np.repeat(candidates, counts)
            costs = problem.costs[nodes] + problem.surpluses(nodes, rows)
            return ServedPods(NodeColumns(rows, nodes, costs), is_optimal)
        most = [_most_times(problem, limit_shares[int(candidates[at])]) for at in undivided]
        if max(most) > MAX_SINGLE_NODES:
            return None
        own = np.repeat(candidates[undivided], most)
        candidates = np.concatenate([np.delete(candidates, undivided), own])
        single = np.concatenate([np.delete(single, undivided), np.ones(len(own), dtype=bool)])
        if int(problem.admits[candidates].sum()) > MAX_ASSIGNMENTS:
            return None
    return None


def _most_times(problem: CoverProblem, shares: FloatArray) -> int:
    """How many nodes that take such shares of limits fit the limits, with a pod on each."""
    return int(min([problem.counts.sum(), *(1.0 / share + _TINY for share in shares.tolist() if share > 0)]))


def _solve(
    problem: CoverProblem, limit_shares: FloatArray, unserved_cost: float, candidates: IntArray, single: FloatArray
) -> tuple[IntArray, IntArray, bool] | None:
    """Nodes of each candidate, the pods of each group on them, and whether that is the optimum.

    Columns: those of ``NodeVariables``, pods that are not served. Rows: its rows, limits, candidates that are one node.
    """
    variables = NodeVariables(problem, candidates)
    node, group, groups = variables.node, variables.group, variables.group_count
    limits, ones = limit_shares.shape[1], np.flatnonzero(single)
    limit_row = variables.row_count
    entries = [
        *variables.entries(),
        (
            np.repeat(np.arange(len(candidates)), limits),
            np.tile(limit_row + np.arange(limits), len(candidates)),
            limit_shares[candidates].ravel(),
        ),
        (ones, limit_row + limits + np.arange(len(ones)), np.ones(len(ones))),
        (variables.column_count + np.arange(groups), np.arange(groups), np.ones(groups)),
    ]
    pod_costs = np.zeros(len(node)) if problem.pod_costs is None else problem.pod_costs[candidates[node], group]
    program = IntegerProgram(
        np.concatenate([problem.costs[candidates], pod_costs, np.full(groups, unserved_cost)]),
        sparse_columns(entries, variables.column_count + groups),
        *variables.bounds(np.ones(limits + len(ones))),
    )
    solution = solve_integer_program(program, MAX_TREE_NODES)
    return None if solution is None else (*variables.contents(solution.values), solution.is_optimal)
