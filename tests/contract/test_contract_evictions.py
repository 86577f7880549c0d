"""Evictions by the status of a PodDisruptionBudget, which only the test writes here."""

from __future__ import annotations

import pytest

from controlplane import binaries
from karpenter.api import core
from karpenter.api.kinds import POD, POD_DISRUPTION_BUDGET
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.kube.errors import Conflict, KubeError, NotFound, ServerUnavailable, StatusCause, TooManyRequests
from karpenter.kube.protocol import Json, Kube
from support.contract_builders import budget, condition, outcome, pod, refused, run_pod, web_pods

#: Until 1.34 the message said that there were too few healthy pods, for any reason of the refusal.
_UNTIL_1_34 = ("The disruption budget budget needs 1 healthy pods and has 3 currently",)
_OLDER = _UNTIL_1_34 if binaries.minor_release() < 35 else ()

_REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


async def _counted(kube: Kube, namespace: str, **status: Json) -> core.PodDisruptionBudget:
    """Write the status of the budget; return it. Default: current generation, three healthy pods, one needed."""
    usual: dict[str, Json] = {
        "observedGeneration": 1,
        "disruptionsAllowed": 2,
        "currentHealthy": 3,
        "desiredHealthy": 1,
        "expectedPods": 3,
    }
    change: dict[str, Json] = {"status": {**usual, **status}}
    return await kube.patch(POD_DISRUPTION_BUDGET, "budget", change, namespace, subresource="status")


async def _with_budget(kube: Kube, namespace: str, pods: int, **status: Json) -> None:
    await web_pods(kube, namespace, pods)
    await kube.create(POD_DISRUPTION_BUDGET, budget(namespace, min_available=1))
    await _counted(kube, namespace, **status)


async def _budget_now(kube: Kube, namespace: str) -> core.PodDisruptionBudgetStatus:
    return (await kube.get(POD_DISRUPTION_BUDGET, "budget", namespace)).status


async def _stays(kube: Kube, name: str, namespace: str) -> bool:
    return (await kube.get(POD, name, namespace)).metadata.deletion_timestamp is None


def _causes(error: KubeError) -> list[str]:
    assert str(error) == _REFUSAL
    assert {cause.reason for cause in error.details.causes} == {"DisruptionBudget"}
    return [cause.message for cause in error.details.causes]


async def test_a_pod_without_a_budget_is_evicted_gracefully(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 1)
    await still.evict("web-0", still_namespace)
    leaving = await still.get(POD, "web-0", still_namespace)
    assert leaving.metadata.deletion_timestamp is not None
    assert leaving.metadata.deletion_grace_period_seconds == 30


async def test_an_evicted_pod_has_a_disruption_target_condition(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 1)
    await still.evict("web-0", still_namespace)
    leaving = await still.get(POD, "web-0", still_namespace)
    said = {
        listed_condition.type: (listed_condition.status, listed_condition.reason, listed_condition.message)
        for listed_condition in leaving.status.conditions
    }
    assert said["DisruptionTarget"] == ("True", "EvictionByEvictionAPI", "Eviction API: evicting")


async def test_an_eviction_of_a_missing_pod_is_not_found(still: Kube, still_namespace: str) -> None:
    error = await refused(still.evict("none", still_namespace))
    assert isinstance(error, NotFound)
    assert (error.details.kind, error.details.name) == ("pods", "none")


async def test_a_budget_without_a_status_allows_nothing_and_has_a_retry_time(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 3)
    await still.create(POD_DISRUPTION_BUDGET, budget(still_namespace, min_available=1))
    error = await refused(still.evict("web-0", still_namespace))
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_seconds == 10
    assert _causes(error) == ["The disruption budget budget is still being processed by the server."]
    assert await _stays(still, "web-0", still_namespace)


async def test_a_status_from_before_a_change_of_the_budget_does_not_apply(still: Kube, still_namespace: str) -> None:
    await _with_budget(still, still_namespace, 1)
    await still.patch(POD_DISRUPTION_BUDGET, "budget", {"spec": {"minAvailable": 3}}, still_namespace)
    error = await refused(still.evict("web-0", still_namespace))
    assert _causes(error) == ["The disruption budget budget is still being processed by the server."]


async def test_every_eviction_reduces_the_allowed_disruptions_until_none_are_left(
    still: Kube, still_namespace: str
) -> None:
    await _with_budget(still, still_namespace, 3)
    await still.evict("web-0", still_namespace)
    status = await _budget_now(still, still_namespace)
    assert (status.disruptions_allowed, set(status.disrupted_pods)) == (1, {"web-0"})
    await still.evict("web-1", still_namespace)
    status = await _budget_now(still, still_namespace)
    assert (status.disruptions_allowed, set(status.disrupted_pods)) == (0, {"web-0", "web-1"})
    assert [
        (listed_condition.type, listed_condition.status, listed_condition.reason)
        for listed_condition in status.conditions
    ] == [("DisruptionAllowed", "False", "InsufficientPods")]
    error = await refused(still.evict("web-2", still_namespace))
    assert isinstance(error, TooManyRequests)
    (cause,) = _causes(error)
    assert cause in ("The disruption budget budget does not allow evicting pods currently", *_OLDER)
    await _counted(still, still_namespace, disruptionsAllowed=1)
    await still.evict("web-2", still_namespace)
    assert not await _stays(still, "web-2", still_namespace)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        pytest.param(
            {"currentHealthy": 1, "desiredHealthy": 2}, "needs 2 healthy pods and has 1 currently", id="too few healthy"
        ),
        pytest.param(
            {"conditions": [condition("DisruptionAllowed", "False", "SyncFailed") | {"message": "no idea"}]},
            "does not allow evicting pods currently because it failed sync: no idea",
            id="could not be counted",
        ),
        pytest.param(
            {"conditions": [condition("DisruptionAllowed", "False", "Closed") | {"message": "closed"}]},
            "does not allow evicting pods currently (Closed): closed",
            id="closed for another reason",
        ),
    ],
)
async def test_a_refusal_names_the_budget_and_its_reason(
    still: Kube, still_namespace: str, status: dict[str, Json], said: str
) -> None:
    await _with_budget(still, still_namespace, 1, disruptionsAllowed=0, **status)
    error = await refused(still.evict("web-0", still_namespace))
    (cause,) = _causes(error)
    assert cause in (f"The disruption budget budget {said}", *_OLDER)


async def test_an_eviction_of_another_uid_is_refused(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 1)
    with pytest.raises(Conflict):
        await still.evict("web-0", still_namespace, uid="another")
    assert await _stays(still, "web-0", still_namespace)
    uid = (await still.get(POD, "web-0", still_namespace)).metadata.uid
    await still.evict("web-0", still_namespace, uid=uid)
    assert not await _stays(still, "web-0", still_namespace)


async def test_an_eviction_with_another_uid_still_reduces_the_allowed_disruptions(
    still: Kube, still_namespace: str
) -> None:
    """An eviction with an outdated uid uses up a disruption until the budget's status is written again."""
    await _with_budget(still, still_namespace, 1)
    with pytest.raises(Conflict):
        await still.evict("web-0", still_namespace, uid="another")
    assert (await _budget_now(still, still_namespace)).disruptions_allowed == 1


async def test_two_budgets_for_one_pod_are_a_server_error(still: Kube, still_namespace: str) -> None:
    await _with_budget(still, still_namespace, 1)
    await still.create(POD_DISRUPTION_BUDGET, budget(still_namespace, "second", min_available=0))
    error = await refused(still.evict("web-0", still_namespace))
    assert isinstance(error, ServerUnavailable)
    assert (error.status, error.reason) == (500, "")
    assert str(error) == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )
    assert await _stays(still, "web-0", still_namespace)
    assert (await _budget_now(still, still_namespace)).disruptions_allowed == 2


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(LabelSelector(match_labels={"app": "db"}), id="another label"),
        pytest.param(None, id="none at all"),
    ],
)
async def test_a_budget_applies_only_to_the_pods_it_selects(
    still: Kube, still_namespace: str, selector: LabelSelector | None
) -> None:
    await web_pods(still, still_namespace, 1)
    spec = core.PodDisruptionBudgetSpec(selector=selector, max_unavailable=0)
    meta = ObjectMeta(name="budget", namespace=still_namespace)
    await still.create(POD_DISRUPTION_BUDGET, core.PodDisruptionBudget(metadata=meta, spec=spec))
    await still.evict("web-0", still_namespace)
    assert not await _stays(still, "web-0", still_namespace)


async def test_an_empty_selector_applies_to_every_pod_of_its_namespace(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 1)
    spec = core.PodDisruptionBudgetSpec(selector=LabelSelector(), max_unavailable=0)
    meta = ObjectMeta(name="budget", namespace=still_namespace)
    await still.create(POD_DISRUPTION_BUDGET, core.PodDisruptionBudget(metadata=meta, spec=spec))
    with pytest.raises(TooManyRequests):
        await still.evict("web-0", still_namespace)


async def _unready(kube: Kube, namespace: str, policy: str | None, **status: Json) -> type[KubeError] | None:
    """The result of evicting a running pod that is not ready, with no disruptions allowed."""
    await kube.create(POD, pod("down", namespace, {"app": "web"}))
    await run_pod(kube, "down", namespace, ready=False)
    wanted = budget(namespace, min_available=1, unhealthy_pod_eviction_policy=policy)
    await kube.create(POD_DISRUPTION_BUDGET, wanted)
    await _counted(kube, namespace, disruptionsAllowed=0, **status)
    return await outcome(kube.evict("down", namespace))


@pytest.mark.parametrize("policy", [None, "IfHealthyBudget"])
@pytest.mark.parametrize(
    ("healthy", "desired", "expected"),
    [
        pytest.param(2, 2, None, id="enough others are healthy"),
        pytest.param(1, 2, TooManyRequests, id="others are missing too"),
        pytest.param(0, 0, TooManyRequests, id="a budget that guards nobody"),
    ],
)
async def test_a_pod_that_is_not_ready_is_evicted_if_the_budget_has_enough_healthy_pods(
    still: Kube, still_namespace: str, policy: str | None, healthy: int, desired: int, expected: type[KubeError] | None
) -> None:
    unready = await _unready(still, still_namespace, policy, currentHealthy=healthy, desiredHealthy=desired)
    assert unready is expected
    assert (await _budget_now(still, still_namespace)).disrupted_pods == {}


async def test_a_pod_that_is_not_ready_is_evicted_with_the_policy_always_allow(
    still: Kube, still_namespace: str
) -> None:
    unready = await _unready(still, still_namespace, "AlwaysAllow", currentHealthy=0, desiredHealthy=3)
    assert unready is None
    assert (await _budget_now(still, still_namespace)).disrupted_pods == {}


async def test_a_ready_pod_is_protected_with_the_policy_always_allow(still: Kube, still_namespace: str) -> None:
    await web_pods(still, still_namespace, 1)
    wanted = budget(still_namespace, min_available=1, unhealthy_pod_eviction_policy="AlwaysAllow")
    await still.create(POD_DISRUPTION_BUDGET, wanted)
    await _counted(still, still_namespace, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await still.evict("web-0", still_namespace)


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_a_pending_or_finished_pod_is_evicted_regardless_of_its_budget(
    still: Kube, still_namespace: str, phase: str
) -> None:
    await _with_budget(still, still_namespace, 1, disruptionsAllowed=0)
    await still.patch(POD, "web-0", {"status": {"phase": phase}}, still_namespace, subresource="status")
    await still.evict("web-0", still_namespace)
    expected = None if phase == "Pending" else NotFound
    assert await outcome(still.get(POD, "web-0", still_namespace)) is expected
    assert (await _budget_now(still, still_namespace)).disrupted_pods == {}


async def test_a_pod_without_a_node_is_evicted_at_once(still: Kube, still_namespace: str) -> None:
    await still.create(POD_DISRUPTION_BUDGET, budget(still_namespace, max_unavailable=0))
    await still.create(POD, pod("web-0", still_namespace, {"app": "web"}))
    await still.evict("web-0", still_namespace)
    assert await outcome(still.get(POD, "web-0", still_namespace)) is NotFound


async def test_a_terminating_pod_can_be_evicted_again(still: Kube, still_namespace: str) -> None:
    await _with_budget(still, still_namespace, 1, disruptionsAllowed=1)
    await still.evict("web-0", still_namespace)
    leaving = (await still.get(POD, "web-0", still_namespace)).metadata
    await still.evict("web-0", still_namespace)
    assert (await still.get(POD, "web-0", still_namespace)).metadata.deletion_timestamp == leaving.deletion_timestamp
    assert (await _budget_now(still, still_namespace)).disruptions_allowed == 0


async def test_a_refused_eviction_does_not_change_the_pod(still: Kube, still_namespace: str) -> None:
    await _with_budget(still, still_namespace, 1, disruptionsAllowed=0)
    before = await still.get(POD, "web-0", still_namespace)
    assert isinstance(await refused(still.evict("web-0", still_namespace)), TooManyRequests)
    assert await still.get(POD, "web-0", still_namespace) == before


async def test_a_refusal_has_structured_causes(still: Kube, still_namespace: str) -> None:
    await _with_budget(still, still_namespace, 1, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1)
    error = await refused(still.evict("web-0", still_namespace))
    text = "The disruption budget budget needs 1 healthy pods and has 1 currently"
    assert error.details.causes == (StatusCause("DisruptionBudget", text),)
