"""The provider ``machines``: the conformance suite, hosts that do not come up, and a whole run."""

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
    NodeClaim,
    NodeClaimResourceRequests,
    NodeClaimSpec,
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
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

CLASS = NodeClassReference(group="karpenter.machines", kind="MachineNodeClass", name="lab")
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
    """Eight hosts in two racks, half of them lent for as long as nobody else needs them."""
    lent = {labels.CAPACITY_TYPE: labels.SPOT}
    racks = [_host(f"rack{rack}-{number}", **{labels.ZONE: f"rack{rack}"}) for rack in (1, 2) for number in (1, 2)]
    spot = [_host(f"lent{rack}-{n}", "0.05", **{labels.ZONE: f"rack{rack}"}, **lent) for rack in (1, 2) for n in (1, 2)]
    return (*racks, *spot)


def _class(hosts: tuple[MachineHost, ...]) -> MachineNodeClass:
    return MachineNodeClass(metadata=ObjectMeta(name="lab"), spec=MachineNodeClassSpec(power="ipmi", hosts=hosts))


@dataclass
class LabEnvironment:
    """A conformance environment: an API server with the class, and BMCs."""

    clock: LoopClock
    kube: MemoryKube
    bmc: SimulatedBmc = field(default_factory=SimulatedBmc)
    started: list[MachineProvider] = field(default_factory=list)

    @property
    def pool(self) -> NodePool:
        template = NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(), node_class_ref=CLASS))
        return NodePool(metadata=ObjectMeta(name="lab"), spec=NodePoolSpec(template=template))

    async def provider(self) -> CloudProvider:
        self.started.append(MachineProvider(self.kube, self.clock, self.bmc))
        return self.started[-1]

    async def claim(
        self, name: str, requirements: Mapping[str, tuple[str, ...]], requests: Mapping[str, str]
    ) -> NodeClaim:
        with suppress(NotFound):
            await self.kube.delete(NODE_CLAIM, name)
        wire = tuple(
            NodeSelectorRequirementWithMinValues(key=key, operator="In", values=values)
            for key, values in requirements.items()
        )
        resources = NodeClaimResourceRequests(requests=requests)
        spec = NodeClaimSpec(requirements=wire, node_class_ref=CLASS, resources=resources)
        metadata = ObjectMeta(name=name, labels={labels.NODE_POOL: "lab"})
        return await self.kube.create(NODE_CLAIM, NodeClaim(metadata=metadata, spec=spec))

    async def exhaust_capacity(self, requirements: Mapping[str, tuple[str, ...]]) -> None:
        wanted = requirements.get(labels.CAPACITY_TYPE, (labels.SPOT, labels.ON_DEMAND))
        for host in _hosts():
            if host.labels.get(labels.CAPACITY_TYPE, labels.ON_DEMAND) in wanted and host.name not in self.bmc.powered:
                self.bmc.broken.add(host.name)

    async def delete_claim(self, claim: NodeClaim) -> None:
        await self.kube.delete(NODE_CLAIM, claim.metadata.name)

    async def corrupt_claim(self, claim: NodeClaim) -> None:
        server = self.kube.server
        claims = server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        server.update_any(claims, "", claim.metadata.name, lambda body: {**body, "status": {"nodeName": 5}})

    async def collect_garbage(self) -> None:
        await asyncio.sleep(60)
        for provider in self.started:
            await provider.collect_garbage()

    async def make_class_not_ready(self) -> None:
        await self.kube.patch(MACHINE_NODE_CLASS, "lab", {"status": {"conditions": [BROKEN]}}, subresource="status")

    async def delete_class(self) -> None:
        await self.kube.delete(MACHINE_NODE_CLASS, "lab")

    async def finish_pending_work(self) -> None:
        await asyncio.sleep(60)
        for instance in await self.started[-1].list():
            if instance.terminating:
                with suppress(ProviderError):
                    await self.started[-1].delete(instance.provider_id)


def in_lab(checks: Callable[[LabEnvironment], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        kube = MemoryKube(MemoryServer(clock, kinds=tuple(kinds.KINDS.values())))
        await kube.create(MACHINE_NODE_CLASS, _class(_hosts()))
        await checks(LabEnvironment(clock, kube))

    virtual_time.run_virtual(main, START)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_provider_conforms(check: conformance.ConformanceCheck) -> None:
    """OPS-210 ff.; each check names its own rules."""
    in_lab(check)


def test_a_host_that_does_not_come_up_is_given_back_and_the_next_one_taken() -> None:
    """The cheapest first: all lent hosts are broken, so a rack host is powered on, with its variables."""

    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        lab.bmc.broken |= {host.name for host in _hosts() if host.name.startswith("lent")}
        bought = await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        assert bought.provider_id == "machines://lab/rack1-1"
        assert lab.bmc.calls[-1] == ("ipmi", "on", "rack1-1", {"BMC": "rack1-1.bmc"})
        entries = (await lab.kube.get(MACHINE_NODE_CLASS, "lab")).status.in_use
        assert [entry.host for entry in entries if not entry.terminating] == ["rack1-1"]
        assert {entry.claim_name for entry in entries} == {"one"}

    in_lab(scenario)


def test_a_host_whose_power_on_failed_is_powered_off_before_it_is_free() -> None:
    """Issue 20: it may have come up after the driver gave up, and nobody else would switch it off; its claim has another host."""

    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        lab.bmc.broken.add("lent1-1")
        claim = await lab.claim("one", {}, {"cpu": "1"})
        bought = await provider.create(claim)
        lab.bmc.broken.clear()
        lab.bmc.powered.add("lent1-1")
        await lab.collect_garbage()
        await asyncio.sleep(1)
        await lab.collect_garbage()
        assert lab.bmc.powered == {bought.node_name}
        assert ("off", "lent1-1") in [call[1:3] for call in lab.bmc.calls]
        assert [instance.provider_id for instance in await provider.list()] == [bought.provider_id]
        assert await provider.drift(claim) is None

    in_lab(scenario)


def test_a_host_whose_power_on_failed_is_told_to_go_off_even_if_it_is_off_now() -> None:
    """Issue 20: what the driver asked for may come late, when nobody knows of the host any more."""

    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        lab.bmc.broken.add("lent1-1")
        await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        lab.bmc.broken.clear()
        await lab.collect_garbage()
        assert [call[1:3] for call in lab.bmc.calls if call[2] == "lent1-1"][-3:] == [
            ("status", "lent1-1"),
            ("off", "lent1-1"),
            ("status", "lent1-1"),
        ]
        assert [entry.host for entry in (await lab.kube.get(MACHINE_NODE_CLASS, "lab")).status.in_use] == ["lent1-2"]

    in_lab(scenario)


def test_a_driver_that_refuses_off_to_a_host_that_is_off_does_not_keep_it() -> None:
    class Strict(SimulatedBmc):
        async def off(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
            if host not in self.powered:
                raise PowerFailed(f"{driver} off {host} ended with 1: not supported in present state")
            await super().off(driver, host, variables)

    async def scenario(lab: LabEnvironment) -> None:
        lab.bmc = Strict()
        provider = await lab.provider()
        lab.bmc.broken.add("lent1-1")
        await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        lab.bmc.broken.clear()
        await lab.collect_garbage()
        assert [entry.host for entry in (await lab.kube.get(MACHINE_NODE_CLASS, "lab")).status.in_use] == ["lent1-2"]

    in_lab(scenario)


def test_a_deleted_class_says_which_nodeclaims_it_waits_for() -> None:
    """Issue 20, OPS-544: five by name, once in ten minutes."""

    async def scenario(lab: LabEnvironment) -> None:
        recorder = EventRecorder(lab.kube, lab.clock)
        writing = asyncio.create_task(recorder.run())
        provider = MachineProvider(lab.kube, lab.clock, lab.bmc, recorder)
        for number in range(6):
            await provider.create(await lab.claim(f"claim-{number}", {}, {"cpu": "1"}))
        await provider.collect_garbage()
        await asyncio.sleep(1)
        assert not (await lab.kube.list(kinds.EVENT)).items
        await lab.delete_class()
        for _ in range(3):
            await provider.collect_garbage()
            await asyncio.sleep(120)
        (event,) = (await lab.kube.list(kinds.EVENT)).items
        assert (event.reason, event.count) == ("WaitingOnNodeClaimTermination", 1)
        assert event.involved_object.kind == "MachineNodeClass"
        named = ", ".join(f"claim-{number}" for number in range(5))
        assert event.message == f"Waiting on NodeClaim termination for {named} and 1 other(s)"
        writing.cancel()

    in_lab(scenario)


def test_a_launch_tries_hosts_for_a_bounded_time_only() -> None:
    """OPS-210: drivers that hang end in insufficient capacity before the provider's time-out."""

    async def scenario(lab: LabEnvironment) -> None:
        lab.bmc.broken |= {host.name for host in _hosts()}
        lab.bmc.seconds_to_fail = 15.0
        provider = await lab.provider()
        began = asyncio.get_running_loop().time()
        with pytest.raises(InsufficientCapacity, match="hosts lent1-1, lent1-2 do not power on"):
            await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        assert asyncio.get_running_loop().time() - began == 30.0

    in_lab(scenario)


def test_two_controllers_never_take_the_same_host() -> None:
    """Each writes its host before it powers it on, against the version it has read."""

    async def scenario(lab: LabEnvironment) -> None:
        providers = [await lab.provider() for _ in range(2)]
        claims = [await lab.claim(f"c-{number}", {}, {"cpu": "1"}) for number in range(9)]
        calls = [providers[number % 2].create(claim) for number, claim in enumerate(claims)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        hosts = [result.node_name for result in results if not isinstance(result, BaseException)]
        assert sorted(hosts) == sorted(host.name for host in _hosts())
        assert [type(result) for result in results if isinstance(result, BaseException)] == [InsufficientCapacity]

    in_lab(scenario)


def test_a_class_in_use_is_not_deleted_from_under_its_claims() -> None:
    """Issue 20: as an EC2NodeClass, it goes after its last host; nothing more is launched of it meanwhile."""

    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        bought = await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        await lab.delete_class()
        assert (await provider.get(bought.provider_id)).node_name == bought.node_name
        with pytest.raises(NodeClassNotReady, match="MachineNodeClass lab is being deleted"):
            await provider.create(await lab.claim("two", {}, {"cpu": "1"}))
        await provider.delete(bought.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(bought.provider_id)
        assert not lab.bmc.powered
        with pytest.raises(NotFound):
            await lab.kube.get(MACHINE_NODE_CLASS, "lab")

    in_lab(scenario)


def test_a_deleted_class_that_a_dead_process_left_without_hosts_is_let_go() -> None:
    async def scenario(lab: LabEnvironment) -> None:
        await (await lab.provider()).create(await lab.claim("one", {}, {"cpu": "1"}))
        await lab.delete_class()
        await lab.kube.patch(MACHINE_NODE_CLASS, "lab", {"status": {"inUse": []}}, subresource="status")
        await lab.collect_garbage()
        with pytest.raises(NotFound):
            await lab.kube.get(MACHINE_NODE_CLASS, "lab")

    in_lab(scenario)


def test_a_host_that_does_not_go_off_stays_in_use_and_its_end_is_tried_again() -> None:
    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        bought = await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        lab.bmc.broken.add(bought.node_name)
        with pytest.raises(
            ProviderError, match="powering off host lent1-1, ipmi status lent1-1 ended with 1: no answer"
        ):
            await provider.delete(bought.provider_id)
        assert (await provider.get(bought.provider_id)).terminating
        lab.bmc.broken.clear()
        await provider.delete(bought.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(bought.provider_id)
        assert await provider.list() == ()

    in_lab(scenario)


def test_a_freed_host_is_not_handed_out_while_another_claim_has_its_provider_id() -> None:
    """The end of that claim would switch off the host of the next one."""

    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        first = await provider.create(await lab.claim("one", {}, {"cpu": "1"}))
        await lab.kube.patch(NODE_CLAIM, "one", {"status": {"providerID": first.provider_id}}, subresource="status")
        await provider.delete(first.provider_id)
        await asyncio.sleep(1)
        with pytest.raises(InstanceNotFound):
            await provider.delete(first.provider_id)
        second = await provider.create(await lab.claim("two", {}, {"cpu": "1"}))
        assert second.provider_id != first.provider_id
        await lab.kube.delete(NODE_CLAIM, "one")
        third = await provider.create(await lab.claim("three", {}, {"cpu": "1"}))
        assert third.provider_id == first.provider_id

    in_lab(scenario)


def test_a_dead_bmc_does_not_keep_garbage_collection_from_other_hosts() -> None:
    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        claims = [await lab.claim(name, {}, {"cpu": "1"}) for name in ("one", "two")]
        dead, other = [(await provider.create(claim)).node_name for claim in claims]
        lab.bmc.broken.add(dead)
        for claim in claims:
            await lab.delete_claim(claim)
        await lab.collect_garbage()
        await asyncio.sleep(1)
        assert dead in lab.bmc.powered
        assert other not in lab.bmc.powered

    in_lab(scenario)


def test_hosts_that_leave_the_class_or_change_are_drift() -> None:
    async def scenario(lab: LabEnvironment) -> None:
        provider = await lab.provider()
        claim = await lab.claim("one", {}, {"cpu": "1"})
        await provider.create(claim)
        assert await provider.drift(claim) is None
        node_class = await lab.kube.get(MACHINE_NODE_CLASS, "lab")
        larger = msgspec.structs.replace(_hosts()[4], capacity={"cpu": "32", "memory": "64Gi"})
        for hosts, reason in (((larger,), "HostChanged"), (_hosts()[:4], "HostRemoved")):
            spec = msgspec.structs.replace(node_class.spec, hosts=hosts)
            await lab.kube.patch(MACHINE_NODE_CLASS, "lab", {"spec": msgspec.to_builtins(spec)})
            drift = await provider.drift(claim)
            assert drift is not None
            assert drift.reason == reason

    in_lab(scenario)


def test_hosts_that_are_alike_are_one_type_and_differences_are_said() -> None:
    types = instance_types("lab", _hosts(), {"rack1-1", "rack1-2"})
    assert len(types) == 1
    assert {(o.zone, o.capacity_type): o.available for o in types[0].offerings} == {
        ("rack1", "on-demand"): False,
        ("rack2", "on-demand"): True,
        ("rack1", "spot"): True,
        ("rack2", "spot"): True,
    }
    with_disk = _host("x", **{"example.com/disk": "nvme"})
    assert len(instance_types("lab", (*_hosts(), with_disk), ())) == 2
    same = {labels.INSTANCE_TYPE: "node-a"}
    small = replace_capacity(_host("b", **same))
    with pytest.raises(HostsError, match="hosts a and b differ and have the same instance type node-a"):
        instance_types("lab", (_host("a", **same), small), ())


def replace_capacity(host: MachineHost) -> MachineHost:
    return msgspec.structs.replace(host, capacity={"cpu": "1", "memory": "1Gi"})


# -- a whole run ----------------------------------------------------------------------------------------------------------


async def _join(cluster: VirtualCluster, host: str) -> None:
    """The host's kubelet registers its Node again, as one that was set up once with kubeadm does."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    await cluster.kube.create(
        kinds.NODE,
        Node(
            metadata=ObjectMeta(name=host, labels={labels.HOSTNAME: host}),
            spec=NodeSpec(provider_id=f"machines://lab/{host}", taints=(labels.UNREGISTERED_TAINT,)),
            status=NodeStatus(
                capacity=amounts,
                allocatable={**amounts, "memory": "63Gi"},
                conditions=(Condition(type="Ready", status="True"),),
            ),
        ),
    )
    await cluster.set_taints(host, (labels.UNREGISTERED_TAINT,))


async def _kubelets(cluster: VirtualCluster) -> None:
    """What kubelets of hosts do with pods, once a second."""
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
async def test_pods_power_hosts_on_and_their_end_powers_them_off(cluster: VirtualCluster) -> None:
    bmc = SimulatedBmc(boot_seconds=90, shut_down_seconds=20)
    bmc.on_boot = lambda host: _join(cluster, host)
    cluster._provider = lambda wire: MachineProvider(wire, cluster.clock, bmc)
    cluster.scheduled()
    cluster.also(_kubelets(cluster))
    await cluster.kube.create(MACHINE_NODE_CLASS, _class(_hosts()))
    disruption = Disruption(consolidate_after="30s", consolidation_policy="WhenEmpty", budgets=OPEN)
    template = NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(_ANY,), node_class_ref=CLASS))
    spec = NodePoolSpec(template=template, disruption=disruption)
    await cluster.kube.create(kinds.NODE_POOL, NodePool(metadata=ObjectMeta(name="lab"), spec=spec))
    await cluster.start()
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 10, "3"))
    await until(lambda: runs(cluster, 10), 300)
    assert len(bmc.powered) == 2, "two hosts hold ten pods of three cores"
    assert all(host.startswith("lent") for host in bmc.powered), "the cheapest"
    nodes = await cluster.all(kinds.NODE)
    assert {node.metadata.labels[labels.ZONE] for node in nodes} <= {"rack1", "rack2"}
    await scale(cluster, "web", 0)
    await until(lambda: _all_off(cluster, bmc), 600)
    assert (await cluster.kube.get(MACHINE_NODE_CLASS, "lab")).status.in_use == ()
    await scale(cluster, "web", 3)
    await until(lambda: runs(cluster, 3), 300)
    assert len(bmc.powered) == 1


async def _all_off(cluster: VirtualCluster, bmc: SimulatedBmc) -> bool:
    return not bmc.powered and not await cluster.all(kinds.NODE_CLAIM)


def test_run_takes_the_provider_and_wants_its_directory(tmp_path: Path) -> None:
    arguments = ["run", "--check", "--provider", "machines"]
    missing = CliRunner().invoke(app, arguments)
    assert missing.exit_code == 2
    assert "--machine-power-directory" in missing.stderr
    taken = CliRunner().invoke(app, [*arguments, "--machine-power-directory", str(tmp_path)])
    assert taken.exit_code == 0, taken.stderr
