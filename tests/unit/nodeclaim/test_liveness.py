"""Liveness: when a NodeClaim is deleted, also after lost writes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, Invalid, ServerUnavailable, TooManyRequests
from karpenter.metrics import Metrics
from karpenter.model import conditions, labels
from karpenter.nodeclaim.lifecycle import NodeClaimLifecycle
from karpenter.nodeclaim.liveness import LivenessTimeouts
from karpenter.providers.contract import InsufficientCapacity, ProviderError
from karpenter.provisioning.nomination import DisabledNominator
from karpenter.runtime.events import EventRecorder
from karpenter.state import ClusterState
from karpenter.termination.instance_termination import InstanceTermination
from support.builders import pod
from support.controller_process import ProcessClock
from support.nodeclaim_stages import launched, registered
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing


def standalone_context(cluster: VirtualCluster) -> ControllerContext:
    """A controller context without a running controller."""
    recorder = EventRecorder(cluster.kube, cluster.clock)
    return ControllerContext(cluster.kube, cluster.cloud, ClusterState(), cluster.clock, recorder, Metrics())


@in_virtual_time
async def test_an_instance_that_never_joins_is_given_up(cluster: VirtualCluster) -> None:
    """OPS-L23, OPS-051, OPS-055 Beyond, DIS-362, DIS-S264: once, for one reason."""
    await launched(cluster)
    await asyncio.sleep(14 * 60)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(61 + 10)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}
    (line,) = cluster.lines("terminating due to timeout")
    assert (line["reason"], line["timeout"]) == ("registration_timeout", "15m0s")
    assert cluster.ended_for("registration_timeout") == 1
    assert cluster.ended_for("launch_timeout") == 0


@in_virtual_time
async def test_the_time_to_register_begins_with_the_launch(cluster: VirtualCluster) -> None:
    """OPS-051 Beyond: the registration timeout of fifteen minutes begins after a launch that took four minutes."""
    cluster.cloud.refuse("create", *(ProviderError("not yet") for _ in range(8)))
    await cluster.start()
    await cluster.claim()
    while not cluster.cloud.launched:
        await asyncio.sleep(1)
    assert cluster.elapsed > 120
    at = cluster.elapsed
    await asyncio.sleep(14.8 * 60)
    assert (await cluster.get_claim()).metadata.deletion_timestamp is None
    await asyncio.sleep(20)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.elapsed - at < 15.5 * 60


@in_virtual_time
async def test_an_instance_that_cannot_be_written_down_is_given_up_all_the_same(cluster: VirtualCluster) -> None:
    """OPS-051: nor does every new attempt start the clock anew."""
    await cluster.start()
    cluster.connection.refuse = refusing(lambda: Invalid("no such label", status=422), 10**6, "patch NodeClaim/status")
    await cluster.claim()
    await asyncio.sleep(14 * 60)
    assert (await cluster.get_claim()).metadata.deletion_timestamp is None
    await asyncio.sleep(3 * 60)
    assert cluster.ended_for("registration_timeout") == 1
    cluster.connection.refuse = lambda write: None
    await asyncio.sleep(70)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_registered_claim_is_never_given_up(cluster: VirtualCluster) -> None:
    """OPS-L24, OPS-052"""
    await registered(cluster)
    await asyncio.sleep(20 * 60)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    assert await cluster.has(kinds.NODE, "node-c")


@in_virtual_time
async def test_a_launch_that_keeps_failing_is_given_up(cluster: VirtualCluster) -> None:
    """OPS-L25, OPS-050, DIS-361, API-142, DIS-040: after five minutes."""
    cluster.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    await launched(cluster)
    await asyncio.sleep(60)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5 * 60)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    (line,) = cluster.lines("terminating due to timeout")
    assert (line["reason"], line["timeout"]) == ("launch_timeout", "5m0s")
    assert cluster.ended_for("launch_timeout") == 1


@pytest.mark.parametrize("step", ["launch", "registration"])
@in_virtual_time
async def test_how_long_a_claim_may_take_can_be_chosen(cluster: VirtualCluster, step: str) -> None:
    """OPS §1.6 Beyond"""
    if step == "launch":
        cluster.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    own = standalone_context(cluster)
    lifecycle = NodeClaimLifecycle(
        own,
        DisabledNominator(),
        InstanceTermination(own),
        LivenessTimeouts(timedelta(minutes=30), timedelta(minutes=40)),
    )
    await cluster.claim(metadata={"finalizers": (labels.TERMINATION_FINALIZER,)})
    limit = 30 if step == "launch" else 40
    for minute in range(limit + 1):
        own.state.set_claim(await cluster.get_claim())
        with suppress(ProviderError):
            await lifecycle.reconcile("c")
        gone = (await cluster.get_claim()).metadata.deletion_timestamp is not None
        assert gone is (minute == limit)
        await asyncio.sleep(60)


@in_virtual_time
async def test_an_odd_claim_written_by_hand_gets_an_event(cluster: VirtualCluster) -> None:
    """API-028: legal, and probably not meant."""
    await launched(cluster, expire_after="99999999999h")
    (event,) = await cluster.events("NodeClaimAdvice")
    assert (event.type, event.involved_object.name) == ("Warning", "c")
    assert "spec.expireAfter" in event.message


@in_virtual_time
async def test_a_claim_the_watch_still_shows_after_it_was_given_up_is_counted_once(cluster: VirtualCluster) -> None:
    """OPS-050: whatever triggers a reconcile of an old version of it."""
    cluster.cloud.refuse("create", *(InsufficientCapacity("none") for _ in range(5)))
    own = standalone_context(cluster)
    metrics = own.metrics
    lifecycle = NodeClaimLifecycle(own, DisabledNominator(), InstanceTermination(own))
    own.state.set_claim(await cluster.claim(metadata={"finalizers": (labels.TERMINATION_FINALIZER,)}))
    for _ in range(5):
        await lifecycle.reconcile("c")
        await asyncio.sleep(5)
    assert [call for call in cluster.cloud.calls if call[0] == "create"] == [("create", "c")]
    described = {"reason": "insufficient_capacity", "nodepool": "", "capacity_type": ""}
    modes = {"consolidation_policy": "", "termination_mode": "graceful"}
    count = metrics.registry.get_sample_value("karpenter_nodeclaims_disrupted_total", {**described, **modes})
    assert count == 1


@pytest.mark.parametrize(
    ("launches", "minutes"), [(False, 12), (True, 16)], ids=["OPS-L26-launch", "OPS-L26-registration"]
)
@in_virtual_time
async def test_a_condition_that_changed_late_starts_its_clock_late(
    cluster: VirtualCluster, launches: bool, minutes: int
) -> None:
    """OPS-L26, OPS-053"""
    if not launches:
        cluster.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    await launched(cluster)
    claim = await cluster.get_claim()
    late = [
        msgspec.structs.replace(condition, last_transition_time=cluster.clock.now() + timedelta(minutes=10))
        for condition in claim.status.conditions
    ]
    status = {"status": {"conditions": msgspec.to_builtins(late)}}
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", status, subresource="status")
    await asyncio.sleep(minutes * 60)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(12 * 60)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")


@in_virtual_time
async def test_a_new_generation_is_observed_by_every_condition(cluster: VirtualCluster) -> None:
    """OPS-L28, OPS-010, OPS-020"""
    await registered(cluster)
    claim = await cluster.get_claim()
    older = [msgspec.structs.replace(condition, observed_generation=0) for condition in claim.status.conditions]
    status = {"status": {"conditions": msgspec.to_builtins(older)}}
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", status, subresource="status")
    await asyncio.sleep(1)
    claim = await cluster.get_claim()
    assert {condition.observed_generation for condition in claim.status.conditions} == {claim.metadata.generation}
    assert conditions.is_true(claim.status.conditions, "Ready")


WRITTEN = ("patch NodeClaim", "patch NodeClaim/status", "patch Node")


@pytest.mark.parametrize("shown", WRITTEN)
@pytest.mark.parametrize(
    "error",
    [
        lambda: Conflict("changed", status=409),
        lambda: ServerUnavailable("broken", status=500),
        lambda: TooManyRequests("slow down"),
    ],
    ids=["409", "500", "429"],
)
@pytest.mark.parametrize("times", [1, 3])
@in_virtual_time
async def test_a_refused_write_costs_nothing_but_time(
    cluster: VirtualCluster, shown: str, error: object, times: int
) -> None:
    """OPS-008, OPS-012: whichever write is refused, the claim is initialized with one instance."""
    await cluster.start()
    cluster.connection.refuse = refusing(error, times, shown)
    await cluster.claim()
    await asyncio.sleep(20)
    await cluster.join()
    await asyncio.sleep(30)
    claim = await cluster.get_claim()
    assert all(condition.status == "True" for condition in claim.status.conditions)
    assert len(cluster.cloud.launched) == 1


@in_virtual_time
async def test_an_answer_of_the_cloud_survives_a_lost_write(cluster: VirtualCluster) -> None:
    """OPS-012: the cloud is called once, however often the result cannot be stored."""
    await cluster.start()
    cluster.connection.refuse = refusing(lambda: ServerUnavailable("broken", status=500), 3, "patch NodeClaim/status")
    await cluster.claim()
    await asyncio.sleep(20)
    assert [call for call in cluster.cloud.calls if call[0] == "create"] == [("create", "c")]
    assert (await cluster.condition("c", "Launched") or ())[0] == "True"


@in_virtual_time
async def test_a_claim_deleted_before_its_instance_was_written_down_leaves_none_behind(cluster: VirtualCluster) -> None:
    """OPS §1.8 Beyond"""
    await cluster.start()
    cluster.connection.refuse = refusing(
        lambda: ServerUnavailable("broken", status=500), 1000, "patch NodeClaim/status"
    )
    await cluster.claim()
    await asyncio.sleep(5)
    assert len(cluster.cloud.instances) == 1
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(10)
    cluster.connection.refuse = lambda write: None
    await asyncio.sleep(60)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_another_controllers_condition_is_not_overwritten(cluster: VirtualCluster) -> None:
    """API-608: conditions are written against the version they were read at."""
    cluster.cloud.lingers = 0
    await cluster.start()
    meddled = []

    def meddle(write: object) -> None:
        if str(write) == "patch NodeClaim" and not meddled and cluster.cloud.launched:
            meddled.append(write)
            server = cluster.server
            resource = server.resource("karpenter.sh", "v1", "nodeclaims")

            def add(body: dict[str, object]) -> dict[str, object]:
                status = dict(body.get("status") or {})
                own = {"type": "Foreign", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "X"}
                return {**body, "status": {**status, "conditions": [*status.get("conditions", []), own]}}

            server.update_status(resource, "", "c", add)

    cluster.connection.refuse = meddle
    await cluster.claim()
    await asyncio.sleep(5)
    assert meddled
    assert (await cluster.condition("c", "Foreign") or ())[0] == "True"
    assert (await cluster.condition("c", "Launched") or ())[0] == "True"


@in_virtual_time
async def test_a_claim_of_the_same_name_gets_an_instance_of_its_own(cluster: VirtualCluster) -> None:
    """The memory of a launch belongs to the claim's uid (OPS-012)."""
    cluster.cloud.lingers = 0
    await launched(cluster)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(10)
    await cluster.claim()
    await asyncio.sleep(1)
    first, second = cluster.cloud.launched
    assert first != second
    assert (await cluster.get_claim()).status.provider_id == second


@in_virtual_time
async def test_an_expired_claim_is_not_launched_first(cluster: VirtualCluster) -> None:
    """DIS-360: a controller that was away for long launches nothing for a claim whose time is over."""
    await cluster.claim(expire_after="30s")
    await asyncio.sleep(60)
    await cluster.start()
    await asyncio.sleep(5)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.launched == []


@in_virtual_time
async def test_quantities_the_api_server_spells_anew_do_not_keep_a_claim(cluster: VirtualCluster) -> None:
    """OPS-L35: nothing is written again and again because it comes back in other words."""
    await registered(cluster, requests={"memory": "50000", "cpu": "1000m"})
    await asyncio.sleep(60)
    written = len(cluster.writes())
    await asyncio.sleep(600 - 70)
    assert len(cluster.writes()) == written
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(30)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert not await cluster.has(kinds.NODE, "node-c")
    assert len(cluster.writes()) < written + 15


async def with_skew(cluster: VirtualCluster) -> ProcessClock:
    """A pod, a simulated cloud, and a process whose clock can be set."""
    cluster.simulated()
    cluster.scheduled()
    cloud_clock = cluster.clock
    cluster.clock = skewed = ProcessClock(cloud_clock)
    await cluster.node_class(node_registration_delay="3m")
    await cluster.pool()
    await cluster.kube.create(kinds.POD, pod("web", {"cpu": "1"}))
    return skewed


async def run_on(cluster: VirtualCluster, skewed: ProcessClock) -> None:
    await cluster.start()
    cluster.simulated_provider._clock = skewed._clock  # the cloud's is right


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
@in_virtual_time
async def test_a_wrong_clock_does_not_launch_and_terminate_without_end(
    cluster: VirtualCluster, ahead: timedelta
) -> None:
    """OPS-050, OPS-051: the creation is a time of the API server's clock, the timeouts are of this process's."""
    skewed = await with_skew(cluster)
    skewed.skew = ahead
    await run_on(cluster, skewed)
    await asyncio.sleep(600)
    assert len(cluster.lines("created nodeclaim")) == 1
    assert cluster.lines("terminating due to timeout") == []
    (claim,) = await cluster.all(kinds.NODE_CLAIM)
    assert conditions.is_true(claim.status.conditions, conditions.INITIALIZED)


@in_virtual_time
async def test_a_clock_that_jumps_ahead_does_not_give_up_instances_that_are_on_their_way(
    cluster: VirtualCluster,
) -> None:
    """OPS-051: the launch was written before the jump."""
    skewed = await with_skew(cluster)
    await run_on(cluster, skewed)
    await asyncio.sleep(30)
    skewed.skew = timedelta(hours=1)
    await asyncio.sleep(600)
    assert cluster.lines("terminating due to timeout") == []
    assert len(cluster.lines("created nodeclaim")) == 1


@in_virtual_time
async def test_a_clock_that_is_set_back_gives_up_an_instance_that_never_joins_in_time_all_the_same(
    cluster: VirtualCluster,
) -> None:
    """OPS-051: the launch was written an hour ahead."""
    skewed = await with_skew(cluster)
    skewed.skew = timedelta(hours=1)
    await run_on(cluster, skewed)
    await asyncio.sleep(30)
    (record,) = await cluster.all(kinds.CONFIG_MAP)
    await cluster.kube.delete(kinds.CONFIG_MAP, record.metadata.name, "kube-system")
    skewed.skew = timedelta()
    await asyncio.sleep(14 * 60)
    assert cluster.lines("terminating due to timeout") == []
    await asyncio.sleep(2 * 60)
    assert len(cluster.lines("terminating due to timeout")) == 1
