"""The Node of a booted instance, from the description of the instance and its bootstrap configuration. Pure functions."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPES

from karpenter.api.core import Node, NodeSpec, NodeStatus
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.scheduling_constraints import Taint
from karpenter.instancetypes import ec2_capacity as formulas
from karpenter.kube.protocol import Json, JsonObject
from karpenter.model import conditions as states
from karpenter.model import labels
from karpenter.model import resources as res
from support.aws.bootstrap import BootstrapConfig
from support.aws.wire import Fields

NOT_READY = Taint(key=labels.NOT_READY_TAINT, effect="NoSchedule")
_READY = "Ready"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


class InstanceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as ``Control.instances`` describes it."""

    instance_id: str
    provider_id: str
    instance_type: str
    zone: str
    zone_id: str
    state: str
    launched_at: float
    ended_at: float | None
    image_name: str
    architecture: str
    private_dns: str
    user_data: str


def new_node(instance: InstanceDescription, config: BootstrapConfig, region: str, now: datetime) -> Node:
    """The Node that a kubelet registers, with the labels of the cloud controller manager; not ready."""
    capacity, allocatable = _resources(instance, config)
    windows = instance.image_name.startswith("Windows")
    own = {
        "kubernetes.io/hostname": instance.private_dns,
        labels.ARCH: _ARCHITECTURES[instance.architecture],
        labels.OS: "windows" if windows else "linux",
        labels.INSTANCE_TYPE: instance.instance_type,
        labels.ZONE: instance.zone,
        labels.REGION: region,
        "topology.k8s.aws/zone-id": instance.zone_id,
    }
    return Node(
        metadata=ObjectMeta(name=instance.private_dns, labels={**config.labels, **own}),
        spec=NodeSpec(provider_id=instance.provider_id, taints=(*config.taints, NOT_READY)),
        status=NodeStatus(
            capacity=res.resources_to_wire(capacity),
            allocatable=res.resources_to_wire(allocatable),
            conditions=(_readiness(states.FALSE, "KubeletNotReady", now),),
        ),
    )


def _resources(instance: InstanceDescription, config: BootstrapConfig) -> tuple[res.Resources, res.Resources]:
    shape = _shape(INSTANCE_TYPES[instance.instance_type])
    capacity = formulas.instance_capacity(shape)
    if config.max_pods is not None:
        capacity = {**capacity, res.PODS: config.max_pods * res.ONE_UNIT}
    kept = formulas.instance_overhead(shape)
    told = {
        name: amount for name, amount in res.parse_resources(config.reserved).items() if name in (res.CPU, res.MEMORY)
    }
    return capacity, {**capacity, **res.subtract({name: capacity[name] for name in kept}, {**kept, **told})}


def _shape(facts: Fields) -> formulas.EC2InstanceShape:
    network, processor = facts["NetworkInfo"], facts["ProcessorInfo"]
    gpus = facts.get("GpuInfo", {}).get("Gpus", [])
    neurons = facts.get("NeuronInfo", {}).get("NeuronDevices", [])
    return formulas.EC2InstanceShape(
        arch=_ARCHITECTURES[processor["SupportedArchitectures"][-1]],
        vcpus=facts["VCpuInfo"]["DefaultVCpus"],
        memory_mib=facts["MemoryInfo"]["SizeInMiB"],
        interfaces=network["MaximumNetworkInterfaces"],
        ipv4_per_interface=network["Ipv4AddressesPerInterface"],
        gpu_manufacturer=gpus[0]["Manufacturer"].lower() if gpus else "",
        gpus=sum(gpu["Count"] for gpu in gpus),
        neuron_devices=sum(device["Count"] for device in neurons),
        neuron_cores=neurons[0]["CoreInfo"]["Count"] if neurons else 0,
    )


def _readiness(status: str, reason: str, now: datetime) -> Condition:
    return Condition(type=_READY, status=status, reason=reason, message=reason, last_transition_time=now)


def readiness_patch(node: Node, status: str, reason: str, now: datetime) -> JsonObject | None:
    """Patch of the Node's Ready condition; None if nothing changes. Other conditions stay."""
    condition = states.find_condition(node.status.conditions, _READY)
    if condition is not None and condition.status == status:
        return None
    kept = [listed_condition for listed_condition in node.status.conditions if listed_condition.type != _READY]
    conditions = [cast(Json, msgspec.to_builtins(obj)) for obj in (*kept, _readiness(status, reason, now))]
    return {"status": {"conditions": conditions}}
