"""The virtual pods of the capacity buffers of a plan, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from karpenter.api.apps import Deployment, ReplicaSet, StatefulSet
from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.core import PodTemplate
from karpenter.capacitybuffer.buffer_pods import build_virtual_pods
from karpenter.capacitybuffer.buffer_resolution import (
    BufferReference,
    BufferTemplateOwner,
    BufferUnresolved,
    buffer_reference,
    buffer_target,
    is_handled,
    resolved_template,
)
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.terminal import print_error
from karpenter.state.virtual_pods import VirtualPods


def virtual_pods_of(objects: ClusterObjects, now: datetime) -> VirtualPods:
    """The virtual pods of all buffers. Reports buffers that cannot be resolved."""
    virtual_pods = VirtualPods()
    for buffer in filter(is_handled, objects.buffers):
        key = f"{buffer.metadata.namespace}/{buffer.metadata.name}"
        try:
            template = resolved_template(_template_owner(buffer, objects))
            count = buffer_target(buffer, template)
        except BufferUnresolved as error:
            print_error(f"CapacityBuffer {key} is left out: {error}")
        else:
            virtual_pods.set_pods(key, build_virtual_pods(buffer, template.spec, count, now))
    return virtual_pods


def _template_owner(buffer: CapacityBuffer, objects: ClusterObjects) -> BufferTemplateOwner:
    reference, namespace = buffer_reference(buffer), buffer.metadata.namespace
    for workload in objects.workloads:
        if (
            isinstance(workload, Deployment | StatefulSet | ReplicaSet | PodTemplate)
            and isinstance(workload, reference.kind.type)
            and (workload.metadata.namespace, workload.metadata.name) == (namespace, reference.name)
        ):
            return workload
    raise reference.not_found(namespace)


def buffer_template_references(objects: ClusterObjects) -> Iterator[tuple[str, BufferReference]]:
    """What buffers name, with the namespace; buffers that name nothing valid are left out."""
    for buffer in filter(is_handled, objects.buffers):
        try:
            yield buffer.metadata.namespace, buffer_reference(buffer)
        except BufferUnresolved:
            continue
