"""The status that the disruption controller writes into a PodDisruptionBudget: the real controller, and the simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from karpenter.api import apps, core
from karpenter.api.kinds import CONFIG_MAP, DEPLOYMENT, POD, POD_DISRUPTION_BUDGET, REPLICA_SET
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference
from karpenter.kube.errors import TooManyRequests
from karpenter.kube.protocol import Kube
from support.contract_builders import budget, config_map, eventually, outcome, owned_by, pod, run_pod, web_pods

_LABELS = {"app": "web"}


@dataclass(frozen=True)
class Counts:
    expected: int
    healthy: int
    desired: int
    allowed: int


def _counts(budget: core.PodDisruptionBudget) -> Counts:
    status = budget.status
    return Counts(status.expected_pods, status.current_healthy, status.desired_healthy, status.disruptions_allowed)


async def _counted(kube: Kube, namespace: str, wanted: Counts) -> core.PodDisruptionBudget:
    """Wait until the status of the budget has these counts; return the budget."""

    async def look() -> core.PodDisruptionBudget:
        return await kube.get(POD_DISRUPTION_BUDGET, "budget", namespace)

    try:
        return await eventually(
            look,
            lambda disruption_budget: (
                bool(disruption_budget.status.conditions) and _counts(disruption_budget) == wanted
            ),
        )
    except TimeoutError:
        raise AssertionError(f"{_counts(await look())} instead of {wanted}") from None


def _template() -> core.PodTemplateSpec:
    return core.PodTemplateSpec(metadata=ObjectMeta(labels=_LABELS), spec=pod("", "").spec)


def _replicated(replicas: int) -> apps.ReplicatedSpec:
    return apps.ReplicatedSpec(replicas=replicas, selector=LabelSelector(match_labels=_LABELS), template=_template())


async def _deployment(kube: Kube, namespace: str, replicas: int, ready: int) -> list[str]:
    """The pods of a Deployment, by name; the first ``ready`` of them run and are ready."""
    meta = ObjectMeta(name="web", namespace=namespace)
    await kube.create(DEPLOYMENT, apps.Deployment(metadata=meta, spec=_replicated(replicas)))
    return await _grown(kube, namespace, replicas, ready)


async def _replica_set(kube: Kube, namespace: str, replicas: int, ready: int) -> list[str]:
    meta = ObjectMeta(name="web", namespace=namespace)
    await kube.create(REPLICA_SET, apps.ReplicaSet(metadata=meta, spec=_replicated(replicas)))
    return await _grown(kube, namespace, replicas, ready)


async def _grown(kube: Kube, namespace: str, replicas: int, ready: int) -> list[str]:
    async def names() -> Sequence[str]:
        return sorted(stored_pod.metadata.name for stored_pod in (await kube.list(POD, namespace)).items)

    result = await eventually(names, lambda seen: len(seen) == replicas)
    await asyncio.gather(*(run_pod(kube, name, namespace) for name in result[:ready]))
    return list(result)


@pytest.mark.parametrize(
    ("spec", "replicas", "ready", "counts"),
    [
        pytest.param({"min_available": 2}, 3, 3, Counts(3, 3, 2, 1), id="two must stay"),
        pytest.param({"min_available": 5}, 3, 3, Counts(3, 3, 5, 0), id="more must stay than there are"),
        pytest.param({"min_available": "50%"}, 5, 5, Counts(5, 5, 3, 2), id="half must stay, rounded up"),
        pytest.param({"min_available": "0%"}, 3, 3, Counts(3, 3, 0, 3), id="none must stay"),
        pytest.param({"min_available": "100%"}, 3, 3, Counts(3, 3, 3, 0), id="all must stay"),
        pytest.param({"max_unavailable": 1}, 4, 4, Counts(4, 4, 3, 1), id="one may be missing"),
        pytest.param({"max_unavailable": 1}, 4, 3, Counts(4, 3, 3, 0), id="one is missing already"),
        pytest.param({"max_unavailable": 0}, 2, 2, Counts(2, 2, 2, 0), id="none may be missing"),
        pytest.param({"max_unavailable": 9}, 2, 2, Counts(2, 2, 0, 2), id="more may be missing than there are"),
        pytest.param({"max_unavailable": "34%"}, 3, 3, Counts(3, 3, 1, 2), id="a third may be missing, rounded up"),
        pytest.param({"max_unavailable": "1%"}, 3, 2, Counts(3, 2, 2, 0), id="a hundredth may be missing: one"),
    ],
)
async def test_a_budget_over_a_deployment_counts(
    kube: Kube, namespace: str, spec: dict[str, object], replicas: int, ready: int, counts: Counts
) -> None:
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, **spec))
    await _deployment(kube, namespace, replicas, ready)
    disruption_budget = await _counted(kube, namespace, counts)
    word = ("True", "SufficientPods") if counts.allowed else ("False", "InsufficientPods")
    assert [
        (condition.type, condition.status, condition.reason) for condition in disruption_budget.status.conditions
    ] == [("DisruptionAllowed", *word)]
    assert (
        disruption_budget.status.observed_generation == disruption_budget.status.conditions[0].observed_generation == 1
    )


async def test_a_replica_set_without_a_deployment_sets_the_expected_pods(kube: Kube, namespace: str) -> None:
    await _replica_set(kube, namespace, 2, 2)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, max_unavailable=1))
    await _counted(kube, namespace, Counts(2, 2, 1, 1))


async def test_pods_without_a_controller_count_only_for_an_integer_min_available(kube: Kube, namespace: str) -> None:
    await web_pods(kube, namespace, 3)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, max_unavailable=1))
    await _counted(kube, namespace, Counts(0, 3, 0, 0))
    await kube.patch(POD_DISRUPTION_BUDGET, "budget", {"spec": {"maxUnavailable": None, "minAvailable": 1}}, namespace)
    disruption_budget = await _counted(kube, namespace, Counts(3, 3, 1, 2))
    assert disruption_budget.status.observed_generation == 2


async def test_finished_pods_are_expected_but_not_healthy(kube: Kube, namespace: str) -> None:
    await web_pods(kube, namespace, 3)
    done = {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}
    await kube.patch(POD, "web-0", {"status": done}, namespace, subresource="status")
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, min_available=1))
    await _counted(kube, namespace, Counts(3, 2, 1, 1))


async def test_terminating_pods_are_expected_but_not_healthy(kube: Kube, namespace: str) -> None:
    await web_pods(kube, namespace, 3)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, min_available=1))
    await _counted(kube, namespace, Counts(3, 3, 1, 2))
    await kube.delete(POD, "web-0", namespace)
    await _counted(kube, namespace, Counts(3, 2, 1, 1))
    await kube.delete(POD, "web-0", namespace, grace_period_seconds=0)
    await _counted(kube, namespace, Counts(2, 2, 1, 1))


async def test_a_budget_without_pods_allows_nothing(kube: Kube, namespace: str) -> None:
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, min_available=0))
    await _counted(kube, namespace, Counts(0, 0, 0, 0))


async def test_a_budget_follows_the_labels_of_pods(kube: Kube, namespace: str) -> None:
    await web_pods(kube, namespace, 2)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, min_available=1))
    await _counted(kube, namespace, Counts(2, 2, 1, 1))
    await kube.patch(POD, "web-0", {"metadata": {"labels": {"app": "other"}}}, namespace)
    await kube.patch(POD, "web-1", {"metadata": {"labels": {"more": "x"}}}, namespace)
    await _counted(kube, namespace, Counts(1, 1, 1, 0))


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        pytest.param(None, "configmaps does not implement the scale subresource", id="without replicas"),
        pytest.param(
            OwnerReference(api_version="example.com/v1", kind="Teapot", name="x", uid="x", controller=True),
            'no matches for kind "Teapot" in version "example.com/v1"',
            id="of a kind nobody knows",
        ),
    ],
)
async def test_a_controller_with_unknown_replicas_makes_the_budget_allow_nothing(
    kube: Kube, namespace: str, owner: OwnerReference | None, said: str
) -> None:
    if owner is None:
        made = await kube.create(CONFIG_MAP, config_map("owner", namespace))
        owner = owned_by(CONFIG_MAP, made.metadata)
    meta = ObjectMeta(name="web-0", namespace=namespace, labels=_LABELS, owner_references=(owner,))
    await kube.create(POD, core.Pod(metadata=meta, spec=pod("", "").spec))
    await run_pod(kube, "web-0", namespace)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, max_unavailable=1))

    async def look() -> core.PodDisruptionBudgetStatus:
        return (await kube.get(POD_DISRUPTION_BUDGET, "budget", namespace)).status

    status = await eventually(look, lambda status: bool(status.conditions))
    assert [(condition.status, condition.reason, condition.message) for condition in status.conditions] == [
        ("False", "SyncFailed", said)
    ]
    assert (status.disruptions_allowed, status.observed_generation) == (0, 0)
    with pytest.raises(TooManyRequests):
        await kube.evict("web-0", namespace)


async def test_evictions_wait_for_earlier_evictions_and_for_replacements(kube: Kube, namespace: str) -> None:
    """An eviction is granted, the next refused, the pod deleted and replaced, and then an eviction is granted again."""
    names = await _deployment(kube, namespace, 3, 3)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, max_unavailable=1))
    await _counted(kube, namespace, Counts(3, 3, 2, 1))
    await kube.evict(names[0], namespace)
    with pytest.raises(TooManyRequests):
        await kube.evict(names[1], namespace)
    disruption_budget = await _counted(kube, namespace, Counts(3, 2, 2, 0))
    assert disruption_budget.status.disrupted_pods.keys() <= {names[0]}
    await kube.delete(POD, names[0], namespace, grace_period_seconds=0)

    async def replacements() -> list[str]:
        return [
            listed_pod.metadata.name
            for listed_pod in (await kube.list(POD, namespace)).items
            if listed_pod.metadata.name not in names
        ]

    [fresh] = await eventually(replacements, lambda answer: len(answer) == 1)
    with pytest.raises(TooManyRequests):
        await kube.evict(names[1], namespace)
    await run_pod(kube, fresh, namespace)
    await eventually(lambda: outcome(kube.evict(names[1], namespace)), lambda answer: answer is None)
