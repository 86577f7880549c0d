"""Nodes share a command only where their pods share a replacement."""

from __future__ import annotations

from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.disruption.decide.command import ConsolidationType
from karpenter.disruption.decide.connected_parts import connected_candidates
from karpenter.model import labels
from support.builders import owner
from support.disruption_cases import KINDS, decide, gone, kind, on, pool, running, sold

_APART = Affinity(
    pod_anti_affinity=PodAffinity(
        required=(
            PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "db"})),
        )
    )
)
_DB = {"labels": {"app": "db"}, "owner_references": (owner("StatefulSet", "db"),)}


def test_independent_replacements_are_commands_of_their_own() -> None:
    """With one all-or-nothing command a single failing launch threw all the others away."""
    names = [f"n{number}" for number in range(8)]
    nodes = [[running(name, "l"), on(name, 1, meta=_DB, affinity=_APART)] for name in names]
    solution = decide(pool(), nodes)
    assert gone(solution) == names
    assert all(len(command.candidates) == len(command.replacements) == 1 for command in solution.commands)
    assert {command.consolidation_type for command in solution.commands} == {ConsolidationType.SINGLE}
    assert all(command.saving_per_hour is not None and command.saving_per_hour > 0 for command in solution.commands)


def test_a_node_whose_replacement_costs_no_less_stays_though_the_others_could_pay_for_it() -> None:
    """A part is judged by itself: the whole saves money, and a part of it does not."""
    large = [[running(f"a{n}", "l"), on(f"a{n}", 1, meta=_DB, affinity=_APART)] for n in range(3)]
    same_price = [running("b", "x"), on("b", 3.5, meta=_DB, affinity=_APART)]
    solution = decide(pool(), large, same_price, types=(*KINDS, kind("x", 4, sold(2.0))))
    assert gone(solution) == ["a0", "a1", "a2"]
    assert len(solution.commands) == 3


def test_no_command_has_parts_that_share_nothing() -> None:
    """Whatever is decided about a mixture of nodes that can be packed together and nodes that cannot."""
    apart = [[running(f"a{n}", "l"), on(f"a{n}", 1, meta=_DB, affinity=_APART)] for n in range(4)]
    together = [running(f"b{n}", "m", 1.5) for n in range(6)]
    solution = decide(pool(), apart, together)
    assert len(gone(solution)) == 7  # three of six nodes hold the pods of all six
    for command in solution.commands:
        assert len(connected_candidates(command)) == 1 or not command.replacements
