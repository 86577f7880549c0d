"""Idempotent launches: the process is killed at every await point of a launch, and no instance is launched twice.

The tests run the launcher and garbage collection with a fake EC2 that honours client tokens, and with what controllers do with
NodeClaims. A kill loses everything in memory; calls in progress may or may not have taken effect; a new process starts with the
state of the API server and EC2.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from karpenter.api.ec2_node_class import Subnet
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import JsonObject, Listing
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_requests import FleetAnswer, FleetError
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.fleet_request import RETRY_PAUSES_SECONDS
from karpenter.providers.aws.instance.instance_controllers import InstanceGarbageCollector
from karpenter.providers.aws.instance.launch_batches import batch_id
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, ProviderError
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import LoopClock
from support.examples import series
from support.fake_ec2 import FakeEc2, Gate
from support.launch_environment import START, LaunchEnvironment, claim, ec2_type, node_class, run_scenario

T = TypeVar("T", bound=Wire)
TYPES = (ec2_type("m5.large", 0.1), ec2_type("c5.large", 0.12))
CLASS = node_class(
    subnets=(
        Subnet(id="s-a1", zone="a", zone_id="az1"),
        Subnet(id="s-a2", zone="a", zone_id="az1"),
        Subnet(id="s-b", zone="b", zone_id="az2"),
    )
)


class AwaitPoints:
    """Counts await points and kills the process at one of them: its tasks never continue."""

    def __init__(self) -> None:
        self.count = 0
        self.fatal = 0
        self.is_dead = asyncio.Event()

    async def __call__(self, call: str, moment: str) -> None:
        self.count += 1
        await asyncio.sleep(0.01)
        if self.count == self.fatal:
            self.is_dead.set()
        if self.is_dead.is_set():
            await asyncio.get_running_loop().create_future()

    def kill_at(self, moment: int) -> None:
        self.count, self.fatal = 0, moment
        self.is_dead = asyncio.Event()


class GatedKube(MemoryKube):
    """An API server whose calls await a gate before they take effect and before they are answered."""

    def __init__(self, server: MemoryServer, gate: AwaitPoints) -> None:
        super().__init__(server)
        self.gate = gate

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        await self.gate("get", "before")
        return await super().get(kind, name, namespace)

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        await self.gate("list", "before")
        return await super().list(kind, namespace)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T:
        await self.gate("patch", "before")
        result = await super().patch(
            kind, name, patch, namespace, subresource=subresource, resource_version=resource_version
        )
        await self.gate("patch", "after")
        return result


class Controllers:
    """One process: tasks that call ``create`` until every NodeClaim has an instance, and garbage collection."""

    def __init__(self, environment: LaunchEnvironment) -> None:
        self._world = environment
        self.given_up: list[str] = []
        self._before = asyncio.all_tasks()
        self._collector = InstanceGarbageCollector(
            environment.instances, environment.kube, environment.seen, environment.clock
        )

    def start(self, claims: list[NodeClaim], late: float = 0.0) -> None:
        """Start garbage collection at once, and the other tasks ``late`` seconds later."""
        loop = asyncio.get_running_loop()
        self._own = [loop.create_task(self._look_after(nodeclaim, late)) for nodeclaim in claims]
        self._collecting = loop.create_task(SingletonReconciler("test", self._collector.reconcile).run())

    async def settled(self) -> None:
        await asyncio.gather(*self._own)

    async def kill(self) -> None:
        """Cancel all tasks of this process."""
        lost = [task for task in asyncio.all_tasks() - self._before if task is not asyncio.current_task()]
        for task in lost:
            task.cancel()
        await asyncio.gather(*lost, return_exceptions=True)

    async def _look_after(self, asked: NodeClaim, late: float) -> None:
        name, uid = asked.metadata.name, asked.metadata.uid
        provider_ids: dict[str, str] = {}
        await asyncio.sleep(late)
        while True:
            try:
                current = await self._world.kube.get(NODE_CLAIM, name)
                if current.metadata.uid != uid or current.status.provider_id:
                    return
                if uid not in provider_ids:
                    instance = await self._world.launcher.launch(current, CLASS, TYPES)
                    provider_ids[uid] = instance.provider_id
                patch = {"status": {"providerID": provider_ids[uid]}}
                version = current.metadata.resource_version
                await self._world.kube.patch(NODE_CLAIM, name, patch, subresource="status", resource_version=version)
            except NotFound:
                return
            except InsufficientCapacity:
                self.given_up.append(name)
                with suppress(NotFound):
                    await self._world.kube.delete(NODE_CLAIM, name, uid=uid)
                return
            except Conflict:
                continue
            except (ProviderError, KubeError):
                await asyncio.sleep(1)


async def _stored(environment: LaunchEnvironment) -> list[NodeClaim]:
    return list((await MemoryKube(environment.kube.server).list(NODE_CLAIM)).items)


async def _story(clock: LoopClock, seed: int, script: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Create NodeClaims and kill processes at await points; return the number of await points and the deleted NodeClaims."""
    chance = random.Random(seed)
    await_points = AwaitPoints()
    kube = GatedKube(MemoryServer(clock), await_points)
    ec2 = FakeEc2(clock, gate=await_points, visible_after=script.get("visible_after", timedelta()))
    ec2.free = dict(script.get("free", {}))
    environment = LaunchEnvironment(clock, kube, ec2)
    created = [
        await MemoryKube(kube.server).create(NODE_CLAIM, claim(f"claim-{n}", uid="")) for n in range(script["claims"])
    ]
    given_up: list[str] = []
    doomed = {nodeclaim.metadata.name for nodeclaim in created if chance.random() < script.get("deleted", 0.0)}
    for fatal in script["kills"]:
        process = Controllers(environment)
        await_points.kill_at(fatal)
        process.start(await _stored(environment), script.get("late", 0.0))
        dead = asyncio.get_running_loop().create_task(await_points.is_dead.wait())
        done = asyncio.get_running_loop().create_task(process.settled())
        await asyncio.wait((dead, done), return_when=asyncio.FIRST_COMPLETED)
        await process.kill()
        dead.cancel()
        given_up += process.given_up
        for name in sorted(doomed):
            with suppress(NotFound):
                await MemoryKube(kube.server).delete(NODE_CLAIM, name)
        if script.get("disturbed"):
            _disturb(environment, chance)
        await asyncio.sleep(script.get("down", 0.0))
        environment.restart()
        assert len(ec2.instances) <= len(created)
    process = Controllers(environment)
    await_points.kill_at(0)
    process.start(await _stored(environment), script.get("late", 0.0))
    await process.settled()
    needed = await_points.count
    await asyncio.sleep(600)
    given_up += process.given_up
    await process.kill()
    _check(await _stored(environment), ec2, len(created))
    return needed, given_up


def _disturb(environment: LaunchEnvironment, chance: random.Random) -> None:
    """Change free addresses between two processes, so that a repeated request differs."""
    environment.addresses.set_free({subnet: chance.randint(0, 200) for subnet in ("s-a1", "s-a2", "s-b")})


def _check(claims: list[NodeClaim], ec2: FakeEc2, asked: int) -> None:
    owned = Counter(nodeclaim.status.provider_id for nodeclaim in claims)
    alive = {instance_info.provider_id_of(info) for info in ec2.alive}
    assert "" not in owned, "every NodeClaim has an instance"
    assert set(owned.values()) <= {1}, "no instance has two NodeClaims"
    assert set(owned) == alive, "no instance is without a NodeClaim, none is missing"
    assert len(ec2.instances) <= asked, "no more instances than NodeClaims were launched"
    assert all(len(request.client_token) <= 64 for request in ec2.fleets)


def _run(seed: int, **script: Any) -> tuple[int, list[str]]:
    async def main(clock: LoopClock) -> tuple[int, list[str]]:
        return await _story(clock, seed, script)

    return virtual.run_virtual(main, START)


def test_an_undisturbed_launch_is_one_fleet() -> None:
    await_points, given_up = _run(0, claims=3, kills=())
    assert (await_points > 10, given_up) == (True, [])


@pytest.mark.parametrize("visible_after", [0, 15], ids=["visible at once", "visible after 15 s"])
def test_killed_at_any_await_point_every_claim_gets_exactly_one_instance(visible_after: int) -> None:
    """Issue 8, idempotent launches: all await points of the launch of three NodeClaims, one after another."""
    late = timedelta(seconds=visible_after)
    await_points, _ = _run(0, claims=3, kills=(), visible_after=late)
    for fatal in range(1, await_points + 1):
        _, given_up = _run(fatal, claims=3, kills=(fatal,), visible_after=late)
        assert given_up == [], f"killed at {fatal}"


@pytest.mark.parametrize("seed", series(range(100), *range(15)))
def test_killed_repeatedly_no_instance_is_launched_twice_or_left_without_a_claim(seed: int) -> None:
    """Issue 8: seeded await points, several processes, NodeClaims deleted meanwhile, requests that differ, exhausted pools."""
    chance = random.Random(seed)
    kills = tuple(chance.randint(1, 25) for _ in range(chance.randint(1, 4)))
    _run(
        seed,
        claims=chance.randint(1, 6),
        kills=kills,
        visible_after=timedelta(seconds=chance.choice((0, 1, 5, 20))),
        disturbed=chance.random() < 0.5,
        deleted=chance.choice((0.0, 0.0, 0.4)),
        down=chance.choice((0.0, 35.0, 300.0)),
        late=chance.choice((0.0, 5.0, 15.0)),
        free=_scarce(chance) if chance.random() < 0.3 else {},
    )


def _scarce(chance: random.Random) -> dict[tuple[str, str, str], float]:
    """Little spot capacity: fleets return fewer instances than requested, or none."""
    pools = [(name, zone, "spot") for name in ("m5.large", "c5.large") for zone in ("a", "b")]
    return {pool: chance.randint(0, 1) for pool in pools}


def test_a_different_request_is_refused_by_its_token_and_the_launched_instances_are_adopted() -> None:
    """The answer is lost, subnets change, EC2 shows the instances late: IdempotentParameterMismatch, later they are found."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        environment.ec2.visible_after = timedelta(seconds=10)
        environment.ec2.gate = _lose_first_answers(len(RETRY_PAUSES_SECONDS) + 1)
        with pytest.raises(ProviderError, match="Timeout"):
            await environment.launcher.launch(asked, CLASS, TYPES)
        environment.addresses.set_free({"s-a2": 100})
        environment.restart()
        environment.ec2.visible_after = timedelta(0)
        nodeclaim = await environment.kube.get(NODE_CLAIM, "one")
        instance = await environment.launcher.launch(nodeclaim, CLASS, TYPES)
        assert len(environment.ec2.instances) == len(environment.ec2.fleets) == 1
        assert instance.provider_id == instance_info.provider_id_of(environment.ec2.alive[0])

    run_scenario(scenario)


def _lose_first_answers(count: int) -> Gate:
    left = count

    async def gate(call: str, moment: str) -> None:
        nonlocal left
        if call == "CreateFleet" and moment == "after" and left:
            left -= 1
            raise AwsError("Timeout", "no answer came")

    return gate


def test_a_lost_answer_is_requested_again_with_the_same_token() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        environment.ec2.gate = _lose_first_answers(1)
        await environment.launcher.launch(asked, CLASS, TYPES)
        assert (environment.ec2.calls["CreateFleet"], len(environment.ec2.instances)) == (2, 1)

    run_scenario(scenario)


def test_throttled_launches_wait_and_complete() -> None:
    """Issue 8: RequestLimitExceeded."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        environment.ec2.faults["CreateFleet"] = [AwsError("RequestLimitExceeded", "slow down") for _ in range(3)]
        await environment.launcher.launch(asked, CLASS, TYPES)
        assert len(environment.ec2.instances) == 1

    run_scenario(scenario)


def test_a_cancelled_create_returns_the_instance_when_it_is_repeated() -> None:
    """OPS-733: a cancelled create has launched an instance."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await environment.launcher.launch(asked, CLASS, TYPES)
        first = await environment.launcher.launch(asked, CLASS, TYPES)
        assert await environment.launcher.launch(asked, CLASS, TYPES) == first
        assert len(environment.ec2.instances) == 1

    run_scenario(scenario)


def test_a_refused_claim_joins_a_new_launch_batch() -> None:
    """A fleet with errors only is final: its client token would return the same errors."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        error = FleetError(error_code="UnauthorizedOperation", error_message="no")
        environment.ec2.extra_errors = (error,)
        environment.ec2.free = {(instance_type.name, zone, "spot"): 0 for instance_type in TYPES for zone in "ab"}
        with pytest.raises(LaunchFailed) as refused:
            await environment.launcher.launch(asked, CLASS, TYPES)
        assert refused.value.reason == "Unauthorized"
        first = (await environment.kube.get(NODE_CLAIM, "one")).metadata.annotations[aws_labels.LAUNCH_BATCH]
        environment.ec2.free, environment.ec2.extra_errors = {}, ()
        await environment.launcher.launch(await environment.kube.get(NODE_CLAIM, "one"), CLASS, TYPES)
        second = (await environment.kube.get(NODE_CLAIM, "one")).metadata.annotations[aws_labels.LAUNCH_BATCH]
        assert first != second
        assert [request.client_token for request in environment.ec2.fleets] == [first, second]

    run_scenario(scenario)


def test_after_a_restart_an_old_batch_is_assigned_before_anything_is_launched() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        claims = [await environment.claim(name, uid="") for name in ("one", "two")]
        await asyncio.gather(*(environment.launcher.launch(nodeclaim, CLASS, TYPES) for nodeclaim in claims))
        environment.restart()
        nodeclaims = [await environment.kube.get(NODE_CLAIM, name) for name in ("one", "two")]
        instances = await asyncio.gather(
            *(environment.launcher.launch(nodeclaim, CLASS, TYPES) for nodeclaim in nodeclaims)
        )
        assert {instance.provider_id for instance in instances} == {
            instance_info.provider_id_of(info) for info in environment.ec2.alive
        }
        assert len(environment.ec2.instances) == 2
        assert {instance.labels[labels.CAPACITY_TYPE] for instance in instances} == {"spot"}

    run_scenario(scenario)


@pytest.mark.parametrize("loser", [0, 1])
def test_a_claim_that_lost_its_provider_id_gets_its_own_instance_back(loser: int) -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        claims = [await environment.claim(name, uid="") for name in ("one", "two")]
        instances = await asyncio.gather(
            *(environment.launcher.launch(nodeclaim, CLASS, TYPES) for nodeclaim in claims)
        )
        await environment.set_provider_id(
            claims[1 - loser], instance_info.parse_instance_id(instances[1 - loser].provider_id)
        )
        environment.restart()
        lost = await environment.kube.get(NODE_CLAIM, claims[loser].metadata.name)
        assert (await environment.launcher.launch(lost, CLASS, TYPES)).provider_id == instances[loser].provider_id

    run_scenario(scenario)


def test_a_claim_deleted_before_the_launch_leaves_the_batch() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        claims = [await environment.claim(name, uid="") for name in ("one", "two")]
        waiting = [asyncio.ensure_future(environment.launcher.launch(nodeclaim, CLASS, TYPES)) for nodeclaim in claims]
        await asyncio.sleep(0)
        await environment.kube.delete(NODE_CLAIM, "two")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[1], ProviderError)
        assert len(environment.ec2.instances) == 1

    run_scenario(scenario)


def test_an_outdated_claim_joins_its_batch_instead_of_a_second_one() -> None:
    """A new leader's informer may not have what the old leader wrote."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        await environment.launcher.launch(asked, CLASS, TYPES)
        environment.restart()
        await environment.launcher.launch(asked, CLASS, TYPES)
        assert len(environment.ec2.instances) == 1

    run_scenario(scenario)


def test_waiting_for_instances_that_are_never_described_ends() -> None:
    """A fleet without instances whose request differs after the crash: its NodeClaim gets a new launch plan."""

    async def scenario(environment: LaunchEnvironment) -> None:
        asked = await environment.claim("one", uid="")
        environment.ec2.answers[batch_id([asked])] = (b"another request", FleetAnswer(fleet_id="fleet-0"))
        with pytest.raises(InsufficientCapacity, match="made no instance"):
            await environment.launcher.launch(asked, CLASS, TYPES)
        assert environment.ec2.instances == {}

    run_scenario(scenario)


def test_claims_that_cannot_be_decoded_block_an_interrupted_launch_but_no_new_one() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        asked, _ = [await environment.claim(name, uid="") for name in ("one", "broken")]
        await environment.launcher.launch(asked, CLASS, TYPES)
        claims = environment.kube.server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        environment.kube.server.update_any(claims, "", "broken", lambda body: {**body, "status": {"nodeName": 5}})
        environment.restart()
        with pytest.raises(ProviderError, match="nobody can read: broken"):
            await environment.launcher.launch(await environment.kube.get(NODE_CLAIM, "one"), CLASS, TYPES)
        await environment.launcher.launch(await environment.claim("new", uid=""), CLASS, TYPES)
        assert len(environment.ec2.instances) == 2

    run_scenario(scenario)
