"""What a decision caches for the next one, and when the cache ends."""

from __future__ import annotations

from dataclasses import replace

from karpenter.api.karpenter import NodePool
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.preferences import Preferences
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import Problem, build_problem
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from karpenter.scheduling.solution import UnschedulablePod
from karpenter.scheduling.whatif.movers import Movers
from support.builders import NOW, node_pool, pod, replaced, snapshot
from support.disruption_cases import KINDS, indexes


def problem(pool: NodePool, options: SchedulingOptions | None = None) -> Problem:
    return build_problem(snapshot([pool]), TYPES, NOW, options or SchedulingOptions())


TYPES = indexes([node_pool()], KINDS)


def test_a_node_pool_whose_usage_alone_has_changed_is_prepared_once() -> None:
    memory = DecisionMemory()
    pool = node_pool()
    used = replaced(pool, status=replaced(pool.status, resources={"cpu": "4"}, nodes=1))
    used = replaced(used, metadata=replaced(pool.metadata, resource_version="2"))
    first = PreparedProblem(problem(pool), TYPES, memory)
    again = PreparedProblem(problem(used), TYPES, memory)
    assert again.templates is first.templates
    assert again.launch_options is first.launch_options


def test_another_specification_label_type_list_or_objective_is_prepared_anew() -> None:
    pool = node_pool()
    labelled = replaced(pool, metadata=replaced(pool.metadata, annotations={"a": "b"}))
    heavier = replaced(pool, spec=replaced(pool.spec, weight=7))
    cheaper = SchedulingOptions(objective=replace(Objective(), node_fee_per_hour=1.0))
    for other in (problem(labelled), problem(heavier), problem(pool, cheaper)):
        memory = DecisionMemory()
        first = PreparedProblem(problem(pool), TYPES, memory)
        assert PreparedProblem(other, TYPES, memory).templates is not first.templates
    memory = DecisionMemory()
    first = PreparedProblem(problem(pool), TYPES, memory)
    others = indexes([pool], KINDS)
    assert PreparedProblem(problem(pool), others, memory).templates is not first.templates


def test_movers_are_made_once_for_the_same_pods_and_preferences() -> None:
    memory, made = DecisionMemory(), list[Movers]()
    first, second = (Preferences(policy, False, frozenset()) for policy in PreferencePolicy)
    mover, twin = pod("a", {"cpu": "1"}), pod("a", {"cpu": "1"})

    def make() -> Movers:
        made.append(Movers((), ()))
        return made[-1]

    known = memory.movers([mover], first, make)
    assert memory.movers([mover], first, make) is known
    assert memory.movers([twin], first, make) is not known
    assert memory.movers([mover, twin], first, make) is not known
    assert memory.movers([mover], second, make) is not known
    assert len(made) == 4


def test_movers_are_forgotten_after_four_preparations_that_do_not_ask_for_them() -> None:
    memory, preferences = DecisionMemory(), Preferences(PreferencePolicy.RESPECT, False, frozenset())
    asked, mover = [pod("asked", {"cpu": "1"})], [pod("a", {"cpu": "1"})]
    kept, known = (memory.movers(pods, preferences, lambda: Movers((), ())) for pods in (asked, mover))
    for _ in range(4):
        memory.signed_pods()
        assert memory.movers(asked, preferences, lambda: Movers((), ())) is kept
    assert memory.movers(mover, preferences, lambda: Movers((), ())) is not known


def test_nothing_is_kept_of_more_pods_than_movers_are_kept_of() -> None:
    """Not even the key: of sets of nodes that are searched together it is as long as the list of their pods."""
    memory, preferences = DecisionMemory(), Preferences(PreferencePolicy.RESPECT, False, frozenset())
    many = [pod("a", {"cpu": "1"})] * 1025
    assert memory.known_movers(many, preferences) is None
    memory.movers(many, preferences, lambda: Movers((), ()))
    assert (len(memory._movers), len(memory._keys_of_sequences)) == (0, 0)
    memory.movers(many[1:], preferences, lambda: Movers((), ()))
    assert memory.known_movers(many[1:], preferences) is not None


def test_movers_that_depend_on_more_than_their_pods_are_made_every_time() -> None:
    memory, made = DecisionMemory(), list[Movers]()
    preferences = Preferences(PreferencePolicy.RESPECT, False, frozenset())
    mover = pod("a", {"cpu": "1"})

    def make() -> Movers:
        made.append(Movers((), (UnschedulablePod(mover, ()),)))
        return made[-1]

    assert memory.movers([mover], preferences, make) is not memory.movers([mover], preferences, make)
