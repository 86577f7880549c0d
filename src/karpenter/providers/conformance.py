"""What every provider must do, as checks that can be run against any of them (OPS-210 ff., OPS-225 ff.).

A ``ConformanceEnvironment`` is the surroundings of one provider: a cloud with a usable node class in which claims can be made,
exhausted, broken, and time can pass. Every check gets a fresh environment and raises ``AssertionError`` with a sentence when the
provider breaks the contract. Checks use only ``CloudProvider``, so what passes here can be put behind the controllers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Protocol

import msgspec

from karpenter.api.karpenter import NodeClaim, NodePool, NodeSelectorRequirementWithMinValues
from karpenter.model import labels, requirements
from karpenter.model import resources as res
from karpenter.model.repair_policies import repair_policies
from karpenter.providers.contract import (
    CloudProvider,
    HookPending,
    Instance,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    ProviderError,
)

#: A claim's requirements: label key to allowed values.
LabelRequirements = Mapping[str, tuple[str, ...]]


class ConformanceEnvironment(Protocol):
    """A cloud of the provider under test, of its own for every check."""

    @property
    def pool(self) -> NodePool:
        """A pool of a ready class."""

    async def provider(self) -> CloudProvider:
        """A newly started provider on this cloud; what earlier ones launched is still there."""

    async def claim(self, name: str, requirements: LabelRequirements, requests: Mapping[str, str]) -> NodeClaim:
        """A stored claim of the pool. Each call makes a claim of its own, also under a name used before."""

    async def exhaust_capacity(self, requirements: LabelRequirements) -> None:
        """From now on the cloud has none of these instances, whatever the provider has recorded."""

    async def delete_claim(self, claim: NodeClaim) -> None:
        """Take the stored claim away, without a word to the provider."""

    async def corrupt_claim(self, claim: NodeClaim) -> None:
        """Make the stored claim one that this version cannot read; it still exists."""

    async def collect_garbage(self) -> None:
        """Run everything that ends instances without a claim once, late enough to judge all there are."""

    async def make_class_not_ready(self) -> None:
        """Make the pool's class not ready."""

    async def delete_class(self) -> None:
        """Delete the pool's class."""

    async def finish_pending_work(self) -> None:
        """Let the time pass that the cloud needs to finish its requests."""


ConformanceCheck = Callable[[ConformanceEnvironment], Awaitable[None]]

_SMALL_REQUESTS = {"cpu": "100m", "memory": "128Mi", "pods": "1"}


def _expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


async def _expect_error(call: Awaitable[object], kind: type[ProviderError], sentence: str) -> None:
    try:
        await call
    except ProviderError as error:
        _expect(type(error) is kind, f"{sentence}: expected {kind.__name__}, got {error!r}")
    else:
        raise AssertionError(f"{sentence}: expected {kind.__name__}, got an answer")


def _wire_requirements(requirements: LabelRequirements) -> tuple[NodeSelectorRequirementWithMinValues, ...]:
    return tuple(
        NodeSelectorRequirementWithMinValues(key=key, operator="In", values=values)
        for key, values in requirements.items()
    )


async def create_returns_a_complete_instance(stage: ConformanceEnvironment) -> None:
    """OPS-210: provider ID, capacity, allocatable and resolved labels are filled in."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    instance = await provider.create(claim)
    _expect(bool(instance.provider_id), "an instance has a provider ID")
    _expect(instance.claim_name == claim.metadata.name, "an instance names its claim")
    for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE, labels.ARCH, labels.OS):
        _expect(bool(instance.labels.get(key)), f"label {key} is settled by the launch")
    _expect(res.fits(instance.allocatable, instance.capacity), "allocatable does not exceed capacity")


async def create_is_idempotent(stage: ConformanceEnvironment) -> None:
    """OPS-211: the same claim never launches twice, not even from a provider that was started in between."""
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    first = await (await stage.provider()).create(claim)
    restarted = await stage.provider()
    second = await restarted.create(claim)
    _expect(first.provider_id == second.provider_id, "a repeated create returns the same instance")
    _expect(len(await restarted.list()) == 1, "a repeated create launches nothing")


async def create_is_idempotent_when_nothing_is_left(stage: ConformanceEnvironment) -> None:
    """OPS-211: a launched instance is found again although its offering has sold out."""
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    first = await (await stage.provider()).create(claim)
    await stage.exhaust_capacity({})
    second = await (await stage.provider()).create(claim)
    _expect(first.provider_id == second.provider_id, "a repeated create returns the same instance")


async def claims_of_one_name_get_separate_instances(stage: ConformanceEnvironment) -> None:
    """OPS-211: name and uid make a claim; another claim of that name is another claim."""
    provider = await stage.provider()
    first = await provider.create(await stage.claim("one", {}, _SMALL_REQUESTS))
    second = await provider.create(await stage.claim("one", {}, _SMALL_REQUESTS))
    _expect(first.provider_id != second.provider_id, "claims with different uids do not share an instance")


async def requests_fit(stage: ConformanceEnvironment) -> None:
    """OPS-210: the instance holds what the claim's pods request."""
    requests = {"cpu": "7", "memory": "20Gi", "pods": "12"}
    instance = await (await stage.provider()).create(await stage.claim("one", {}, requests))
    _expect(res.fits(res.parse_resources(requests), instance.allocatable), "the requests fit the instance")


async def requests_beyond_all_types_are_refused(stage: ConformanceEnvironment) -> None:
    """OPS-226: nothing can hold the requests, so there is no capacity for them."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, {"cpu": "1000000"})
    await _expect_error(provider.create(claim), InsufficientCapacity, "requests no type can hold")
    _expect(await provider.list() == (), "a refused launch leaves no instance")


async def requirements_are_respected(stage: ConformanceEnvironment) -> None:
    """OPS-210: whichever label is required, the instance has one of the values."""
    provider = await stage.provider()
    for number, (zone, kind) in enumerate(sorted(await _zones_and_capacity_types(provider, stage))):
        required = {labels.ZONE: (zone,), labels.CAPACITY_TYPE: (kind,)}
        instance = await provider.create(await stage.claim(f"claim-{number}", required, _SMALL_REQUESTS))
        satisfied = requirements.compatible(
            requirements.requirements_from_labels(instance.labels),
            requirements.requirements_from_wire(_wire_requirements(required)),
            frozenset(),
        )
        _expect(satisfied, f"a claim for {kind} in {zone} gets that, not {instance.labels}")


async def _zones_and_capacity_types(provider: CloudProvider, stage: ConformanceEnvironment) -> set[tuple[str, str]]:
    types = await provider.instance_types(stage.pool)
    return {
        (offering.zone, offering.capacity_type)
        for instance_type in types
        for offering in instance_type.offerings
        if offering.available
    }


async def unknown_types_are_refused(stage: ConformanceEnvironment) -> None:
    """OPS-226: a type the cloud does not have."""
    claim = await stage.claim("one", {labels.INSTANCE_TYPE: ("no.such",)}, _SMALL_REQUESTS)
    await _expect_error((await stage.provider()).create(claim), InsufficientCapacity, "a type that does not exist")


async def exhausted_capacity_is_reported_and_remembered(stage: ConformanceEnvironment) -> None:
    """OPS-226, OPS-215: the claim fails as insufficient capacity, and the offerings stay listed as unavailable."""
    provider = await stage.provider()
    before = await provider.instance_types(stage.pool)
    spot = {labels.CAPACITY_TYPE: (labels.SPOT,)}
    await stage.exhaust_capacity(spot)
    claim = await stage.claim("one", spot, _SMALL_REQUESTS)
    await _expect_error(provider.create(claim), InsufficientCapacity, "a claim for what is exhausted")
    after = await provider.instance_types(stage.pool)
    _expect(
        {instance_type.name for instance_type in before} == {instance_type.name for instance_type in after},
        "types without capacity are still listed",
    )
    gone = [
        offering
        for kind in after
        for offering in kind.offerings
        if offering.capacity_type == labels.SPOT and not offering.available
    ]
    _expect(bool(gone), "what was refused is marked unavailable")


async def another_offering_is_launched_when_one_is_exhausted(stage: ConformanceEnvironment) -> None:
    """OPS-210: the claim leaves a choice, so the launch takes another."""
    provider = await stage.provider()
    first = await provider.create(await stage.claim("one", {}, _SMALL_REQUESTS))
    await stage.exhaust_capacity({labels.CAPACITY_TYPE: (first.labels[labels.CAPACITY_TYPE],)})
    second = await provider.create(await stage.claim("two", {}, _SMALL_REQUESTS))
    _expect(
        second.labels[labels.CAPACITY_TYPE] != first.labels[labels.CAPACITY_TYPE], "the other capacity type is launched"
    )


async def a_missing_class_is_insufficient_capacity(stage: ConformanceEnvironment) -> None:
    """A launch without its node class fails as insufficient capacity, so the claim is deleted (OPS-017)."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    await stage.delete_class()
    await _expect_error(provider.create(claim), InsufficientCapacity, "a class that does not exist")


async def a_class_that_is_not_ready_is_reported(stage: ConformanceEnvironment) -> None:
    """A launch whose node class is not ready fails with an error of its own (OPS-227)."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    await stage.make_class_not_ready()
    await _expect_error(provider.create(claim), NodeClassNotReady, "a class that is not ready")


async def delete_is_repeated_until_the_instance_is_gone(stage: ConformanceEnvironment) -> None:
    """OPS-212, OPS-213, OPS-214: terminating is listed as such, gone is not found, by every call."""
    provider = await stage.provider()
    instance = await provider.create(await stage.claim("one", {}, _SMALL_REQUESTS))
    await provider.delete(instance.provider_id)
    _expect(await _is_terminating(provider, instance), "a deleted instance is listed as terminating, or not at all")
    await stage.finish_pending_work()
    await _expect_error(provider.delete(instance.provider_id), InstanceNotFound, "delete of an instance that is gone")
    await _expect_error(provider.get(instance.provider_id), InstanceNotFound, "get of an instance that is gone")
    _expect(await provider.list() == (), "an instance that is gone is not listed")


async def _is_terminating(provider: CloudProvider, launched: Instance) -> bool:
    return all(
        instance.terminating for instance in await provider.list() if instance.provider_id == launched.provider_id
    )


async def an_instance_without_a_claim_is_collected(stage: ConformanceEnvironment) -> None:
    """OPS-266: no controller would ever terminate it."""
    provider = await stage.provider()
    kept, lost = [await stage.claim(name, {}, _SMALL_REQUESTS) for name in ("kept", "lost")]
    instances = [await provider.create(claim) for claim in (kept, lost)]
    await stage.delete_claim(lost)
    await stage.collect_garbage()
    await stage.finish_pending_work()
    _expect(
        {instance.claim_name for instance in await provider.list()} == {"kept"},
        "only the instance without a claim goes",
    )
    await _expect_error(provider.get(instances[1].provider_id), InstanceNotFound, "get of a collected instance")


async def an_instance_of_an_unreadable_claim_is_kept(stage: ConformanceEnvironment) -> None:
    """OPS-266: a claim that does not decode is not a claim that is gone; pods run on its instance."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    instance = await provider.create(claim)
    await stage.corrupt_claim(claim)
    await stage.collect_garbage()
    await stage.finish_pending_work()
    _expect(not (await provider.get(instance.provider_id)).terminating, "the instance of an unreadable claim runs on")


async def unknown_instances_are_not_found(stage: ConformanceEnvironment) -> None:
    """OPS-212, OPS-213, OPS-225: also for provider IDs of another cloud."""
    provider = await stage.provider()
    for provider_id in ("", "other://instance", (await _deleted_instance_id(stage))):
        await _expect_error(provider.get(provider_id), InstanceNotFound, f"get of {provider_id!r}")
        await _expect_error(provider.delete(provider_id), InstanceNotFound, f"delete of {provider_id!r}")


async def _deleted_instance_id(stage: ConformanceEnvironment) -> str:
    """The provider ID of an instance that existed once."""
    provider = await stage.provider()
    instance = await provider.create(await stage.claim("stranger", {}, _SMALL_REQUESTS))
    await provider.delete(instance.provider_id)
    await stage.finish_pending_work()
    return instance.provider_id


async def a_restarted_provider_lists_the_same_instances(stage: ConformanceEnvironment) -> None:
    """OPS-211, OPS-214: the cloud is the memory, not the process."""
    provider = await stage.provider()
    instances = [await provider.create(await stage.claim(name, {}, _SMALL_REQUESTS)) for name in ("one", "two")]
    restarted = await stage.provider()
    seen = {instance.provider_id: instance for instance in await restarted.list()}
    _expect(seen.keys() == {instance.provider_id for instance in instances}, "all instances are listed after a restart")
    for instance in instances:
        again = await restarted.get(instance.provider_id)
        _expect(again.claim_name == instance.claim_name, "an instance keeps its claim over a restart")
        _expect(again.labels == instance.labels, "an instance keeps its labels over a restart")


async def instance_types_are_identical_while_nothing_changes(stage: ConformanceEnvironment) -> None:
    """OPS-215: callers cache by identity. A launch changes the types only where their instances are counted."""
    provider = await stage.provider()
    first = await provider.instance_types(stage.pool)
    _expect(await provider.instance_types(stage.pool) is first, "the same tuple is returned while nothing changed")
    await provider.create(await stage.claim("one", {}, _SMALL_REQUESTS))
    after = await provider.instance_types(stage.pool)
    is_counted = any(offering.stock for instance_type in first for offering in instance_type.offerings)
    _expect(after is first or (is_counted and after != first), "the same tuple is returned after a launch")
    _expect(await provider.instance_types(stage.pool) is after, "the same tuple is returned after the launch")


async def instance_types_are_well_formed(stage: ConformanceEnvironment) -> None:
    """OPS-235, OPS-236: names are unique and every offering names one zone and one capacity type."""
    types = await (await stage.provider()).instance_types(stage.pool)
    _expect(len({instance_type.name for instance_type in types}) == len(types), "names of types are unique")
    for instance_type in types:
        _expect(
            instance_type.requirements[labels.INSTANCE_TYPE].values == {instance_type.name},
            "a type's label is its name",
        )
        places = [(offering.zone, offering.capacity_type) for offering in instance_type.offerings]
        _expect(all(zone and kind for zone, kind in places), "an offering names zone and capacity type")
        _expect(all(offering.price_per_hour >= 0 for offering in instance_type.offerings), "prices are not negative")


async def the_provider_identifies_itself(stage: ConformanceEnvironment) -> None:
    """OPS-217 to OPS-219, K15-204: a name, at least one class kind, and repair policies that a controller can start with."""
    provider = await stage.provider()
    _expect(bool(provider.name), "a provider has a name")
    _expect(len(provider.node_class_kinds) > 0, "a provider serves a class")
    repair_policies(provider.repair_policies())
    _expect(
        all(policy.toleration.total_seconds() > 0 for policy in provider.repair_policies()),
        "a broken instance is given time to recover",
    )


async def registration_hooks_have_unique_names(stage: ConformanceEnvironment) -> None:
    """OPS-030, OPS-031: conditions and logs name them."""
    names = [hook.name for hook in (await stage.provider()).registration_hooks()]
    _expect(all(names) and len(set(names)) == len(names), f"every hook has a name of its own: {names}")


async def registration_hooks_answer_for_a_new_instance(stage: ConformanceEnvironment) -> None:
    """OPS-030: satisfied, or when to ask again; an instance that has just been launched is no reason to fail."""
    provider = await stage.provider()
    claim = await stage.claim("one", {}, _SMALL_REQUESTS)
    instance = await provider.create(claim)
    status = msgspec.structs.replace(claim.status, provider_id=instance.provider_id)
    launched = msgspec.structs.replace(claim, status=status)
    for hook in provider.registration_hooks():
        answer = await hook.check(launched)
        wait = answer.retry_after if isinstance(answer, HookPending) else None
        _expect(wait is None or wait > timedelta(), f"hook {hook.name} is to be asked again later, not at once")


CHECKS: tuple[ConformanceCheck, ...] = (
    create_returns_a_complete_instance,
    create_is_idempotent,
    create_is_idempotent_when_nothing_is_left,
    claims_of_one_name_get_separate_instances,
    requests_fit,
    requests_beyond_all_types_are_refused,
    requirements_are_respected,
    unknown_types_are_refused,
    exhausted_capacity_is_reported_and_remembered,
    another_offering_is_launched_when_one_is_exhausted,
    a_missing_class_is_insufficient_capacity,
    a_class_that_is_not_ready_is_reported,
    delete_is_repeated_until_the_instance_is_gone,
    an_instance_without_a_claim_is_collected,
    an_instance_of_an_unreadable_claim_is_kept,
    unknown_instances_are_not_found,
    a_restarted_provider_lists_the_same_instances,
    instance_types_are_identical_while_nothing_changes,
    instance_types_are_well_formed,
    the_provider_identifies_itself,
    registration_hooks_have_unique_names,
    registration_hooks_answer_for_a_new_instance,
)
