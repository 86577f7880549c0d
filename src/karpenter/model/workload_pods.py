"""From workloads to their pods: names, labels and owner references as the workload controllers give them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicaSet, ReplicatedSpec
from karpenter.api.core import Pod, PodTemplateSpec
from karpenter.api.kinds import Kind
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference, Wire

W = TypeVar("W", bound=Wire)

TEMPLATE_HASH_LABEL = "pod-template-hash"
REVISION_HASH_LABEL = "controller-revision-hash"
#: What tells the pods of a StatefulSet, and those of an indexed Job, from each other.
STATEFUL_SET_POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def reference_to(kind: Kind[W], metadata: ObjectMeta) -> OwnerReference:
    """A controlling reference to an object."""
    return OwnerReference(
        api_version=kind.api_version,
        kind=kind.name,
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def name_suffix(text: str, length: int = 5) -> str:
    """A short name part derived from a text, without vowels."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    letters = []
    for _ in range(length):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def template_hash(template: PodTemplateSpec) -> str:
    """A name for a template: equal templates have equal names."""
    return name_suffix(msgspec.json.encode(template, order="deterministic").decode(), 10)


def with_labels(template: PodTemplateSpec, labels: Mapping[str, str]) -> PodTemplateSpec:
    """The template with these labels added."""
    metadata = template.metadata
    return msgspec.structs.replace(
        template, metadata=msgspec.structs.replace(metadata, labels={**metadata.labels, **labels})
    )


def desired_replicas(spec: ReplicatedSpec) -> int:
    """How many pods a workload is set to: one where it does not say."""
    return 1 if spec.replicas is None else spec.replicas


def replica_set_of(deployment: Deployment, name: str, replicas: int) -> ReplicaSet:
    """The Deployment's ReplicaSet of this name, which ends in the hash of the template."""
    revision = name.rpartition("-")[2]
    template = with_labels(deployment.spec.template, {TEMPLATE_HASH_LABEL: revision})
    selector = deployment.spec.selector or LabelSelector()
    own = msgspec.structs.replace(selector, match_labels={**selector.match_labels, TEMPLATE_HASH_LABEL: revision})
    return ReplicaSet(
        metadata=ObjectMeta(
            name=name,
            namespace=deployment.metadata.namespace,
            labels=template.metadata.labels,
            owner_references=(reference_to(kinds.DEPLOYMENT, deployment.metadata),),
        ),
        spec=ReplicatedSpec(replicas=replicas, selector=own, template=template),
    )


def pod_of_template(template: PodTemplateSpec, name: str, namespace: str, owner: OwnerReference) -> Pod:
    """The pod that a controller makes from its template."""
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        labels=template.metadata.labels,
        annotations=template.metadata.annotations,
        owner_references=(owner,),
    )
    return Pod(metadata=metadata, spec=template.spec)
