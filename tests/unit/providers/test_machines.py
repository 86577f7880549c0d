"""The provider ``machines``: conformance, hosts that do not power on, and a run with all controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from karpenter.api import kinds
from karpenter.api.core import Node, NodeSpec, NodeStatus
from karpenter.api.karpenter import (
    Disruption,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.kinds import MACHINE_NODE_CLASS, NODE_CLAIM
from karpenter.api.machine_node_class import MachineHost, MachineNodeClass, MachineNodeClassSpec
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.cli.main import app
from karpenter.kube.errors import NotFound
from karpenter.model import labels
from karpenter.providers import conformance
from karpenter.providers.contract import (
    CloudProvider,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    ProviderError,
)
from karpenter.providers.machines import MachineProvider, PowerFailed
from karpenter.providers.machines.machine_hosts import HostsError, instance_types
from karpenter.runtime.events import EventRecorder
from karpenter.simulation import virtual_time
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import LoopClock
from support.consolidation_cases import OPEN, deployment, runs, scale
from support.simulated_bmc import SimulatedBmc
from support.simulated_provider_cluster import BROKEN, START
from support.stored_claims import StoredClaims
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

CLASS = NodeClassReference(group="karpenter.machines", kind="MachineNodeClass", name="default")
_ANY = NodeSelectorRequirementWithMinValues(key=labels.CAPACITY_TYPE, operator="Exists")


def _host(name: str, cost: str = "0.10", **own: str) -> MachineHost:
    return MachineHost(
        name=name,
        capacity={"cpu": "16", "memory": "64Gi"},
        overhead={"memory": "1Gi"},
        labels=own,
        cost_per_hour=cost,
        variables={"BMC": f"{name}.bmc"},
    )


def _hosts() -> tuple[MachineHost, ...]:
    """Eight hosts in two racks, half of them with capacity type spot."""
    spot_label = {labels.CAPACITY_TYPE: labels.SPOT}
    racks = [_host(f"rack{rack}-{number}", **{labels.ZONE: f"rack{rack}"}) for rack in (1, 2) for number in (1, 2)]
    spot = [
        _host(f"spot{rack}-{n}", "0.05", **{labels.ZONE: f"rack{rack}"}, **spot_label)
        for rack in (1, 2)
        for n in (1, 2)
    ]
    return (*racks, *spot)


def _class(hosts: tuple[MachineHost, ...]) -> MachineNodeClass:
    return MachineNodeClass(metadata=ObjectMeta(name="default"), spec=MachineNodeClassSpec(power="ipmi", hosts=hosts))


@dataclass
class MachinesEnvironment(StoredClaims):
    """A conformance environment: an API server with the class, and BMCs."""

    node_class = CLASS
    clock: LoopClock
    kube: MemoryKube
    bmc: SimulatedBmc = field(default_factory=SimulatedBmc)
    started: list[MachineProvider] = field(default_factory=list)

    async def provider(self) -> CloudProvider:
        self.started.append(MachineProvider(self.kube, self.clock, self.bmc))
        return self.started[-1]

    async def exhaust_capacity(self, requirements: Mapping[str, tuple[str, ...]]) -> None:
        wanted = requirements.get(labels.CAPACITY_TYPE, (labels.SPOT, labels.ON_DEMAND))
        for host in _hosts():
            if host.labels.get(labels.CAPACITY_TYPE, labels.ON_DEMAND) in wanted and host.name not in self.bmc.powered:
                self.bmc.broken.add(host.name)

    async def collect_garbage(self) -> None:
        await asyncio.sleep(60)
        for provider in self.started:
            await provider.collect_garbage()

    async def make_class_not_ready(self) -> None:
        await self.kube.patch(MACHINE_NODE_CLASS, "default", {"status": {"conditions": [BROKEN]}}, subresource="status")

    async def delete_class(self) -> None:
        await self.kube.delete(MACHINE_NODE_CLASS, "default")

    async def finish_pending_work(self) -> None:
        await asyncio.sleep(60)
        for instance in await self.started[-1].list():
            if instance.terminating:
                with suppress(ProviderError):
                    await self.started[-1].delete(instance.provider_id)


def run_in_environment(checks: Callable[[MachinesEnvironment], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        kube = MemoryKube(MemoryServer(clock, kinds=tuple(kinds.KINDS.values())))
        await kube.create(MACHINE_NODE_CLASS, _class(_hosts()))
        await checks(MachinesEnvironment(clock, kube))

    virtual_time.run_virtual(main, START)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_provider_conforms(check: conformance.ConformanceCheck) -> None:
    """OPS-210 ff.; each check names its own rules."""
    run_in_environment(check)


def test_a_host_that_does_not_power_on_is_released_and_the_next_one_is_used() -> None:
    """The cheapest first: all spot hosts are broken, so an on-demand host is powered on, with its variables."""

    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        environment.bmc.broken |= {host.name for host in _hosts() if host.name.startswith("spot")}
        created = await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        assert created.provider_id == "machines://default/rack1-1"
        assert environment.bmc.calls[-1] == ("ipmi", "on", "rack1-1", {"BMC": "rack1-1.bmc"})
        entries = (await environment.kube.get(MACHINE_NODE_CLASS, "default")).status.in_use
        assert [entry.host for entry in entries if not entry.terminating] == ["rack1-1"]
        assert {entry.claim_name for entry in entries} == {"one"}

    run_in_environment(scenario)


def test_a_host_whose_power_on_failed_is_powered_off_before_it_is_free() -> None:
    """Issue 20: it may power on after the driver failed, and its NodeClaim has another host."""

    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        environment.bmc.broken.add("spot1-1")
        claim = await environment.claim("one", {}, {"cpu": "1"})
        created = await provider.create(claim)
        environment.bmc.broken.clear()
        environment.bmc.powered.add("spot1-1")
        await environment.collect_garbage()
        await asyncio.sleep(1)
        await environment.collect_garbage()
        assert environment.bmc.powered == {created.node_name}
        assert ("off", "spot1-1") in [call[1:3] for call in environment.bmc.calls]
        assert [instance.provider_id for instance in await provider.list()] == [created.provider_id]
        assert await provider.drift(claim) is None

    run_in_environment(scenario)


def test_a_host_whose_power_on_failed_is_powered_off_even_if_it_is_off_now() -> None:
    """Issue 20: a late power-on could take effect when the host has no NodeClaim."""

    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        environment.bmc.broken.add("spot1-1")
        await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        environment.bmc.broken.clear()
        await environment.collect_garbage()
        assert [call[1:3] for call in environment.bmc.calls if call[2] == "spot1-1"][-3:] == [
            ("status", "spot1-1"),
            ("off", "spot1-1"),
            ("status", "spot1-1"),
        ]
        assert [entry.host for entry in (await environment.kube.get(MACHINE_NODE_CLASS, "default")).status.in_use] == [
            "spot1-2"
        ]

    run_in_environment(scenario)


def test_a_host_is_released_if_its_driver_refuses_to_power_it_off_while_it_is_off() -> None:
    class Strict(SimulatedBmc):
        async def off(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
            if host not in self.powered:
                raise PowerFailed(f"{driver} off {host} ended with 1: not supported in present state")
            await super().off(driver, host, variables)

    async def scenario(environment: MachinesEnvironment) -> None:
        environment.bmc = Strict()
        provider = await environment.provider()
        environment.bmc.broken.add("spot1-1")
        await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        environment.bmc.broken.clear()
        await environment.collect_garbage()
        assert [entry.host for entry in (await environment.kube.get(MACHINE_NODE_CLASS, "default")).status.in_use] == [
            "spot1-2"
        ]

    run_in_environment(scenario)


def test_a_deleted_class_names_the_nodeclaims_it_waits_for() -> None:
    """Issue 20, OPS-544: five names, once per ten minutes."""

    async def scenario(environment: MachinesEnvironment) -> None:
        recorder = EventRecorder(environment.kube, environment.clock)
        writing = asyncio.create_task(recorder.run())
        provider = MachineProvider(environment.kube, environment.clock, environment.bmc, recorder)
        for number in range(6):
            await provider.create(await environment.claim(f"claim-{number}", {}, {"cpu": "1"}))
        await provider.collect_garbage()
        await asyncio.sleep(1)
        assert not (await environment.kube.list(kinds.EVENT)).items
        await environment.delete_class()
        for _ in range(3):
            await provider.collect_garbage()
            await asyncio.sleep(120)
        (event,) = (await environment.kube.list(kinds.EVENT)).items
        assert (event.reason, event.count) == ("WaitingOnNodeClaimTermination", 1)
        assert event.involved_object.kind == "MachineNodeClass"
        named = ", ".join(f"claim-{number}" for number in range(5))
        assert event.message == f"Waiting on NodeClaim termination for {named} and 1 other(s)"
        writing.cancel()

    run_in_environment(scenario)


def test_a_launch_tries_hosts_for_a_limited_time() -> None:
    """OPS-210: drivers that hang give insufficient capacity before the timeout of the call."""

    async def scenario(environment: MachinesEnvironment) -> None:
        environment.bmc.broken |= {host.name for host in _hosts()}
        environment.bmc.seconds_to_fail = 15.0
        provider = await environment.provider()
        began = asyncio.get_running_loop().time()
        with pytest.raises(InsufficientCapacity, match="hosts spot1-1, spot1-2 do not power on"):
            await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        assert asyncio.get_running_loop().time() - began == 30.0

    run_in_environment(scenario)


def test_two_controllers_never_take_the_same_host() -> None:
    """Each writes its host before it powers it on, with the resource version that it has read."""

    async def scenario(environment: MachinesEnvironment) -> None:
        providers = [await environment.provider() for _ in range(2)]
        claims = [await environment.claim(f"c-{number}", {}, {"cpu": "1"}) for number in range(9)]
        calls = [providers[number % 2].create(claim) for number, claim in enumerate(claims)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        hosts = [result.node_name for result in results if not isinstance(result, BaseException)]
        assert sorted(hosts) == sorted(host.name for host in _hosts())
        assert [type(result) for result in results if isinstance(result, BaseException)] == [InsufficientCapacity]

    run_in_environment(scenario)


def test_a_class_in_use_is_deleted_after_its_claims() -> None:
    """Issue 20: like an EC2NodeClass, it is deleted after its last host; meanwhile nothing is launched from it."""

    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        created = await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        await environment.delete_class()
        assert (await provider.get(created.provider_id)).node_name == created.node_name
        with pytest.raises(NodeClassNotReady, match="MachineNodeClass default is being deleted"):
            await provider.create(await environment.claim("two", {}, {"cpu": "1"}))
        await provider.delete(created.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(created.provider_id)
        assert not environment.bmc.powered
        with pytest.raises(NotFound):
            await environment.kube.get(MACHINE_NODE_CLASS, "default")

    run_in_environment(scenario)


def test_the_finalizer_of_a_deleted_class_without_hosts_is_removed_by_a_new_process() -> None:
    async def scenario(environment: MachinesEnvironment) -> None:
        await (await environment.provider()).create(await environment.claim("one", {}, {"cpu": "1"}))
        await environment.delete_class()
        await environment.kube.patch(MACHINE_NODE_CLASS, "default", {"status": {"inUse": []}}, subresource="status")
        await environment.collect_garbage()
        with pytest.raises(NotFound):
            await environment.kube.get(MACHINE_NODE_CLASS, "default")

    run_in_environment(scenario)


def test_a_host_that_does_not_power_off_stays_in_use_and_termination_is_retried() -> None:
    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        created = await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        environment.bmc.broken.add(created.node_name)
        with pytest.raises(
            ProviderError, match="powering off host spot1-1, ipmi status spot1-1 ended with 1: no answer"
        ):
            await provider.delete(created.provider_id)
        assert (await provider.get(created.provider_id)).terminating
        environment.bmc.broken.clear()
        await provider.delete(created.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(created.provider_id)
        assert await provider.list() == ()

    run_in_environment(scenario)


def test_a_released_host_is_not_used_while_another_claim_has_its_provider_id() -> None:
    """The deletion of that NodeClaim would power off the host of another."""

    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        first = await provider.create(await environment.claim("one", {}, {"cpu": "1"}))
        await environment.kube.patch(
            NODE_CLAIM, "one", {"status": {"providerID": first.provider_id}}, subresource="status"
        )
        await provider.delete(first.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(first.provider_id)
        second = await provider.create(await environment.claim("two", {}, {"cpu": "1"}))
        assert second.provider_id != first.provider_id
        await environment.kube.delete(NODE_CLAIM, "one")
        third = await provider.create(await environment.claim("three", {}, {"cpu": "1"}))
        assert third.provider_id == first.provider_id

    run_in_environment(scenario)


def test_a_bmc_that_does_not_answer_does_not_stop_garbage_collection_of_other_hosts() -> None:
    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        claims = [await environment.claim(name, {}, {"cpu": "1"}) for name in ("one", "two")]
        dead, other = [(await provider.create(claim)).node_name for claim in claims]
        environment.bmc.broken.add(dead)
        for claim in claims:
            await environment.delete_claim(claim)
        await environment.collect_garbage()
        await asyncio.sleep(1)
        assert dead in environment.bmc.powered
        assert other not in environment.bmc.powered

    run_in_environment(scenario)


def test_hosts_that_are_removed_from_the_class_or_change_are_drift() -> None:
    async def scenario(environment: MachinesEnvironment) -> None:
        provider = await environment.provider()
        claim = await environment.claim("one", {}, {"cpu": "1"})
        await provider.create(claim)
        assert await provider.drift(claim) is None
        node_class = await environment.kube.get(MACHINE_NODE_CLASS, "default")
        larger = msgspec.structs.replace(_hosts()[4], capacity={"cpu": "32", "memory": "64Gi"})
        for hosts, reason in (((larger,), "HostChanged"), (_hosts()[:4], "HostRemoved")):
            spec = msgspec.structs.replace(node_class.spec, hosts=hosts)
            await environment.kube.patch(MACHINE_NODE_CLASS, "default", {"spec": msgspec.to_builtins(spec)})
            drift = await provider.drift(claim)
            assert drift is not None
            assert drift.reason == reason

    run_in_environment(scenario)


def test_equal_hosts_are_one_instance_type_and_differences_are_reported() -> None:
    types = instance_types("default", _hosts(), {"rack1-1", "rack1-2"})
    assert len(types) == 1
    assert {(o.zone, o.capacity_type): o.available for o in types[0].offerings} == {
        ("rack1", "on-demand"): False,
        ("rack2", "on-demand"): True,
        ("rack1", "spot"): True,
        ("rack2", "spot"): True,
    }
    with_disk = _host("x", **{"example.com/disk": "nvme"})
    assert len(instance_types("default", (*_hosts(), with_disk), ())) == 2
    same = {labels.INSTANCE_TYPE: "node-a"}
    small = replace_capacity(_host("b", **same))
    with pytest.raises(HostsError, match="hosts a and b differ and have the same instance type node-a"):
        instance_types("default", (_host("a", **same), small), ())


def replace_capacity(host: MachineHost) -> MachineHost:
    return msgspec.structs.replace(host, capacity={"cpu": "1", "memory": "1Gi"})


# -- a whole run ----------------------------------------------------------------------------------------------------------


async def _join(cluster: VirtualCluster, host: str) -> None:
    """Register the Node of a host, as a kubelet that was set up with kubeadm does."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    await cluster.kube.create(
        kinds.NODE,
        Node(
            metadata=ObjectMeta(name=host, labels={labels.HOSTNAME: host}),
            spec=NodeSpec(provider_id=f"machines://default/{host}", taints=(labels.UNREGISTERED_TAINT,)),
            status=NodeStatus(
                capacity=amounts,
                allocatable={**amounts, "memory": "63Gi"},
                conditions=(Condition(type="Ready", status="True"),),
            ),
        ),
    )
    await cluster.set_taints(host, (labels.UNREGISTERED_TAINT,))


async def _kubelets(cluster: VirtualCluster) -> None:
    """Simulate the kubelets of hosts, once per second."""
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    while True:
        await asyncio.sleep(1)
        for pod in await cluster.all(kinds.POD):
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                await cluster.gone(name)
            elif pod.spec.node_name and pod.status.phase != "Running":
                await cluster.kube.patch(kinds.POD, name, running, "default", subresource="status")


@in_virtual_time
async def test_pending_pods_power_hosts_on_and_deleted_pods_power_them_off(cluster: VirtualCluster) -> None:
    bmc = SimulatedBmc(boot_seconds=90, shut_down_seconds=20)
    bmc.on_boot = lambda host: _join(cluster, host)
    cluster._provider = lambda wire: MachineProvider(wire, cluster.clock, bmc)
    cluster.scheduled()
    cluster.also(_kubelets(cluster))
    await cluster.kube.create(MACHINE_NODE_CLASS, _class(_hosts()))
    disruption = Disruption(consolidate_after="30s", consolidation_policy="WhenEmpty", budgets=OPEN)
    template = NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(_ANY,), node_class_ref=CLASS))
    spec = NodePoolSpec(template=template, disruption=disruption)
    await cluster.kube.create(kinds.NODE_POOL, NodePool(metadata=ObjectMeta(name="default"), spec=spec))
    await cluster.start()
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 10, "3"))
    await until(lambda: runs(cluster, 10), 300)
    assert len(bmc.powered) == 2, "two hosts hold ten pods of three cores"
    assert all(host.startswith("spot") for host in bmc.powered), "the cheapest"
    nodes = await cluster.all(kinds.NODE)
    assert {node.metadata.labels[labels.ZONE] for node in nodes} <= {"rack1", "rack2"}
    await scale(cluster, "web", 0)
    await until(lambda: _all_off(cluster, bmc), 600)
    assert (await cluster.kube.get(MACHINE_NODE_CLASS, "default")).status.in_use == ()
    await scale(cluster, "web", 3)
    await until(lambda: runs(cluster, 3), 300)
    assert len(bmc.powered) == 1


async def _all_off(cluster: VirtualCluster, bmc: SimulatedBmc) -> bool:
    return not bmc.powered and not await cluster.all(kinds.NODE_CLAIM)


def test_run_accepts_the_provider_and_requires_its_directory(tmp_path: Path) -> None:
    arguments = ["run", "--check", "--provider", "machines"]
    missing = CliRunner().invoke(app, arguments)
    assert missing.exit_code == 2
    assert "--machine-power-directory" in missing.stderr
    taken = CliRunner().invoke(app, [*arguments, "--machine-power-directory", str(tmp_path)])
    assert taken.exit_code == 0, taken.stderr
