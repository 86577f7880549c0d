"""Seeded clusters whose nodes have devices, and pods that claim them, for a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import msgspec

from controlplane import binaries
from karpenter.api.core import Node, Pod
from karpenter.api.resource_claims import (
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
    ResourceSliceSpec,
)
from support.builders import node
from support.device_builders import (
    DRIVER,
    alternative,
    counter_set,
    device,
    device_class,
    every,
    exactly,
    first_available,
    published,
    resource_claim,
    same,
    slice_spec,
    using,
)

_MODEL = f'device.attributes["{DRIVER}"].model'
_MODELS = ("a100", "h100")


@dataclass(frozen=True)
class DeviceScenario:
    """Nodes with slices, and pods with one claim each; two pods may share one."""

    name: str
    nodes: tuple[Node, ...]
    slices: tuple[ResourceSlice, ...]
    claims: tuple[ResourceClaim, ...]
    pods: tuple[Pod, ...]

    @property
    def classes(self) -> tuple[DeviceClass, ...]:
        """The only class."""
        return (device_class(),)


def device_scenarios(count: int) -> Iterator[DeviceScenario]:
    """So many scenarios, each of its own seed."""
    return (_scenario(f"d{number:03}") for number in range(count))


def _scenario(name: str) -> DeviceScenario:
    dice = Random(f"devices {name}")
    nodes, slices = [], []
    for number in range(dice.randint(1, 3)):
        own = f"{name}-n{number}"
        nodes.append(node(own, {"cpu": "16", "memory": "64Gi", "pods": "20"}))
        slices += _slices_of_node(own, dice)
    claims, pods = [], []
    for number in range(dice.randint(2, 7)):
        claim = resource_claim(f"{name}-c{number}", *_requests(dice))
        if dice.random() < 0.3:
            claim = resource_claim(f"{name}-c{number}", exactly("r", 2), constraints=_constraints(dice))
        claims.append(claim)
        users = range(2 if dice.random() < 0.15 else 1)
        pods += [using(f"{name}-p{number}-{user}", claim.metadata.name) for user in users]
    return DeviceScenario(name, tuple(nodes), tuple(slices), tuple(claims), tuple(pods))


def _slices_of_node(own: str, dice: Random) -> Iterator[ResourceSlice]:
    kind = dice.choice(("plain", "plain", "partitioned", "shared", "none"))
    if kind == "plain":
        yield published(f"{own}-s", slice_spec(*_plain_devices(dice), node=own))
    elif kind == "partitioned":
        counters = counter_set("gpu", memory="80Gi", slices="7")
        for number, spec in enumerate(partitioned(counters, *_partitions(), node=own)):
            yield published(f"{own}-s{number}", spec)
    elif kind == "shared":
        yield published(f"{own}-s", slice_spec(*(_shared(at) for at in range(dice.randint(1, 2))), node=own))


def partitioned(counters: CounterSet, *devices: Device, node: str | None = None) -> tuple[ResourceSliceSpec, ...]:
    """Devices that consume counters. Until Kubernetes 1.34 both are in one slice, since 1.35 each has slices of its own."""
    if binaries.minor_release() < 35:
        return (slice_spec(*devices, node=node, counters=[counters]),)
    return slice_spec(node=node, slices=2, counters=[counters]), slice_spec(*devices, node=node, slices=2)


def _plain_devices(dice: Random) -> Iterator[Device]:
    model = dice.choice(_MODELS)
    for at in range(dice.choice((1, 2, 4))):
        taints = (DeviceTaint(key="worn", value="out", effect="NoSchedule"),) if dice.random() < 0.15 else ()
        yield device(
            f"gpu-{at}", {"model": model, "link": f"l{at // 2}", "index": at}, {"memory": "40Gi"}, taints=taints
        )


def _partitions() -> Iterator[Device]:
    """A GPU as a whole, two halves of it and seven small parts."""
    sizes = (
        [("whole", 7, 80)] + [(f"half-{at}", 3, 40) for at in range(2)] + [(f"small-{at}", 1, 10) for at in range(7)]
    )
    for name, slices, memory in sizes:
        takes = {"gpu": {"slices": f"{slices}", "memory": f"{memory}Gi"}}
        yield device(name, {"model": "mig", "link": "l0"}, {"memory": f"{memory}Gi"}, takes)


def _shared(at: int) -> Device:
    memory = DeviceCapacity(value="40Gi")
    return device(f"gpu-{at}", {"model": "a100", "link": "l0"}, {"memory": memory}, allow_multiple_allocations=True)


def _requests(dice: Random) -> tuple[DeviceRequest, ...]:
    model = dice.choice((*_MODELS, "mig"))
    of_model = f'{_MODEL} == "{model}"'
    tolerant = {"tolerations": (DeviceToleration(key="worn", operator="Exists"),)}
    large = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{dice.choice((10, 40, 80))}Gi")) >= 0'
    choices = (
        (exactly("r", dice.choice((1, 1, 2, 3))),),
        (exactly("r", 1, of_model),),
        (exactly("r", 1, large),),
        (exactly("r", 1, **tolerant),),
        (exactly("r", 1, capacity={"memory": f"{dice.choice((5, 20, 30))}Gi"}),),
        (exactly("a", 1, of_model), exactly("b", 1)),
        # kube-scheduler 1.35.4 panics where mode All meets devices with counters.
        (every("r", f'{_MODEL} == "{dice.choice(_MODELS)}"'),),
        (first_available("r", alternative("two", 2, of_model), alternative("one", 1)),),
        # A selector that fails at run time ends the scheduler's attempt, so an attribute is asked for before it is read.
        (exactly("r", 1, f'"index" in device.attributes["{DRIVER}"] && device.attributes["{DRIVER}"].index >= 1'),),
    )
    return dice.choice(choices)


def _constraints(dice: Random) -> tuple[DeviceConstraint, ...]:
    return (dice.choice((same("link"), same("model"), same("link", "r"))),)


def placed_by(each: Pod, host: str) -> Pod:
    """The pod pinned to a node."""
    spec = msgspec.structs.replace(each.spec, node_selector={"kubernetes.io/hostname": host})
    return msgspec.structs.replace(each, spec=spec)
