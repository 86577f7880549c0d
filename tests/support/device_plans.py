"""Plans for pods with device claims, on types with a GPU, with four of them, and with two of another model."""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.api.resource_claims import DeviceClass
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.solution import Solution
from support.builders import node_pool, plan
from support.device_builders import DRIVER, device_class, gpu_type
from support.instance_types import STD

MODEL = f'device.attributes["{DRIVER}"].model'
ONE, FOUR = gpu_type("g1", 1), gpu_type("g4", 4, links=2)
H100 = gpu_type("h2", 2, "h100")
TYPES = (*STD, ONE, FOUR, H100)
ROOM: dict[str, str | int] = {"cpu": 8, "memory": "32Gi", "pods": 110}


def decided(*objects: object, types: Iterable[InstanceType] = TYPES, classes: Iterable[DeviceClass] = ()) -> Solution:
    """The plan for a pool, a class of all GPUs and these objects."""
    return plan(node_pool(), device_class(), list(classes), list(objects), types=tuple(types))
