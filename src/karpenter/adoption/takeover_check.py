"""What happens to the objects of a running Karpenter when this controller takes its place (``karpenter adopt --check``).

The controllers share kinds, labels, finalizers and provider IDs, so nothing is rewritten before the exchange. What differs is
named here: two controllers at once, CRDs that still hold older versions, NodeClaims between launch and registration, NodeClaims
whose template is older than their NodePool's, objects that fail our validation. Pure, linear in the objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from karpenter.api.apps import Deployment
from karpenter.api.control_plane import CustomResourceDefinition, Lease
from karpenter.api.core import Node
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.model import clock, conditions, labels, nodepool_hash, runtime_validation

_GROUPS = frozenset({"karpenter.sh", "karpenter.k8s.aws"})
_SERVED_VERSION = "v1"
_SERVED_CLASSES = frozenset({"EC2NodeClass", "KWOKNodeClass"})
_KARPENTER_APP = "karpenter"
_APP_LABEL = "app.kubernetes.io/name"
#: A Lease that was renewed within this time has a holder that runs: four times Karpenter's lease duration of 15 s.
_FRESH_LEASE = timedelta(minutes=1)
_SHOWN_NAMES = 3


class Verdict(StrEnum):
    """What a finding means for the take-over."""

    COMPATIBLE = "compatible"
    DIFFERS = "differs"
    CHANGE_FIRST = "change first"


@dataclass(frozen=True, slots=True)
class AdoptionFinding:
    """One sentence about an object (``NodePool web``), and how to fix it if a user has to act."""

    subject: str
    verdict: Verdict
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class AdoptionInput:
    """The objects of the cluster, at a time. Empty where they were not read.

    ``unreadable``: lines about objects that do not decode or that an API server with our CRDs would refuse.
    """

    now: datetime
    pools: tuple[NodePool, ...] = ()
    claims: tuple[NodeClaim, ...] = ()
    nodes: tuple[Node, ...] = ()
    node_classes: tuple[EC2NodeClass | KWOKNodeClass, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    leases: tuple[Lease, ...] = ()
    definitions: tuple[CustomResourceDefinition, ...] = ()
    well_known: frozenset[str] = labels.WELL_KNOWN
    unreadable: tuple[str, ...] = ()


def check_takeover(adoption_input: AdoptionInput) -> tuple[AdoptionFinding, ...]:
    """All findings: of the controllers first, then by kind."""
    return (
        *_controller_findings(adoption_input),
        *_definition_findings(adoption_input.definitions),
        *(AdoptionFinding("input", Verdict.CHANGE_FIRST, line, "correct it") for line in adoption_input.unreadable),
        *_pool_findings(adoption_input),
        *_class_findings(adoption_input),
        *_claim_findings(adoption_input),
        *_node_findings(adoption_input),
    )


# -- running now ---------------------------------------------------------------------------------------------------------------


def _controller_findings(adoption_input: AdoptionInput) -> Iterator[AdoptionFinding]:
    for deployment in adoption_input.deployments:
        meta = deployment.metadata
        if meta.labels.get(_APP_LABEL) != _KARPENTER_APP:
            continue
        subject = f"Deployment {meta.namespace}/{meta.name}"
        if deployment.spec.replicas == 0:
            yield AdoptionFinding(subject, Verdict.COMPATIBLE, "is scaled to zero; keep it for the way back")
        else:
            scale = f"kubectl -n {meta.namespace} scale deployment {meta.name} --replicas 0"
            text = "runs; two controllers would act on the same objects"
            yield AdoptionFinding(subject, Verdict.CHANGE_FIRST, text, f"before the start: {scale}")
    for lease in adoption_input.leases:
        renewed = _renewed_at(lease)
        if renewed is not None and adoption_input.now - renewed < _FRESH_LEASE:
            subject = f"Lease {lease.metadata.namespace}/{lease.metadata.name}"
            text = (
                f"is held by {lease.spec.holder_identity}; under the same name this controller waits until it is free"
            )
            yield AdoptionFinding(subject, Verdict.DIFFERS, text)


def _renewed_at(lease: Lease) -> datetime | None:
    if not lease.spec.holder_identity or lease.spec.renew_time is None:
        return None
    try:
        return clock.parse_timestamp(lease.spec.renew_time)
    except clock.TimestampError:
        return None


def _definition_findings(definitions: Iterable[CustomResourceDefinition]) -> Iterator[AdoptionFinding]:
    for definition in definitions:
        name = definition.metadata.name
        stored = definition.status.stored_versions
        older = [version for version in stored if version != _SERVED_VERSION and not version.startswith("v1alpha1")]
        if name.partition(".")[2] not in _GROUPS or not older:
            continue
        text = (
            f"still has objects stored as {', '.join(older)}; the API server refuses a definition without that version"
        )
        kind = name.partition(".")[0]
        fix = (
            "nothing for definitions that have that version, as ours do: the controller writes every object again; before "
            f"you apply others, wait for it, or write every object once (kubectl get {kind} -o name | xargs -n1 kubectl "
            f"annotate --overwrite migrated=true) and set status.storedVersions of {name} to [{_SERVED_VERSION}]"
        )
        yield AdoptionFinding(f"CustomResourceDefinition {name}", Verdict.CHANGE_FIRST, text, fix)


# -- NodePools and their classes --------------------------------------------------------------------------------------------


def _pool_findings(adoption_input: AdoptionInput) -> Iterator[AdoptionFinding]:
    classes = {(type(wire).__name__, wire.metadata.name) for wire in adoption_input.node_classes}
    for pool in adoption_input.pools:
        subject = f"NodePool {pool.metadata.name}"
        problems = [*_pool_problems(pool, adoption_input.well_known), *_reference_problems(pool, classes)]
        yield from problems or [AdoptionFinding(subject, Verdict.COMPATIBLE, _hash_text(pool))]


def _pool_problems(pool: NodePool, well_known: frozenset[str]) -> Iterator[AdoptionFinding]:
    for finding in runtime_validation.validate_node_pool(pool, well_known):
        text = f"is not used by this controller: {finding}"
        yield AdoptionFinding(f"NodePool {pool.metadata.name}", Verdict.CHANGE_FIRST, text, "correct the field")


def _reference_problems(pool: NodePool, classes: set[tuple[str, str]]) -> Iterator[AdoptionFinding]:
    reference = pool.spec.template.spec.node_class_ref
    subject = f"NodePool {pool.metadata.name}"
    if reference.kind not in _SERVED_CLASSES:
        text = f"is of another provider: {reference.kind} of {reference.group}; it is left alone"
        fix = (
            "run its provider with --provider MODULE:CLASS (docs/how-to/own-provider.md), or keep its controller for it"
        )
        yield AdoptionFinding(subject, Verdict.CHANGE_FIRST, text, fix)
    elif (reference.kind, reference.name) not in classes:
        text = f"names the {reference.kind} {reference.name}, which is not there; it launches nothing"
        yield AdoptionFinding(subject, Verdict.CHANGE_FIRST, text, "create the class or correct the reference")


def _hash_text(pool: NodePool) -> str:
    version = pool.metadata.annotations.get(labels.NODE_POOL_HASH_VERSION)
    if version in (None, nodepool_hash.NODE_POOL_HASH_VERSION):
        return "is used as it is"
    return f"is used as it is; its hash of version {version} is stamped anew, which is no drift"


def _class_findings(adoption_input: AdoptionInput) -> Iterator[AdoptionFinding]:
    for node_class in adoption_input.node_classes:
        subject = f"{type(node_class).__name__} {node_class.metadata.name}"
        if isinstance(node_class, EC2NodeClass):
            text = "is used as it is; instances, launch templates and instance profiles are found by the cluster name"
        else:
            text = "is used as it is; its nodes are simulated"
        yield AdoptionFinding(subject, Verdict.COMPATIBLE, text)


# -- NodeClaims and Nodes ------------------------------------------------------------------------------------------------------


def _claim_findings(adoption_input: AdoptionInput) -> Iterator[AdoptionFinding]:
    pools = {pool.metadata.name: pool for pool in adoption_input.pools}
    kept: Counter[str] = Counter()
    older: dict[str, list[str]] = {}
    for claim in adoption_input.claims:
        name = claim.metadata.labels.get(labels.NODE_POOL, "")
        finding = _claim_finding(claim, name in pools)
        if finding is not None:
            yield finding
        elif name in pools and _is_of_older_template(claim, pools[name]):
            older.setdefault(name, []).append(claim.metadata.name)
        else:
            kept[name] += 1
    for name, claims in sorted(older.items()):
        text = (
            f"{_names(claims)} {'were' if len(claims) > 1 else 'was'} made from an older template and not marked Drifted yet; "
            "after the stamps are written anew they count as up to date, Karpenter would replace them"
        )
        fix = "to have them replaced, wait until they are Drifted, or delete them after the take-over"
        yield AdoptionFinding(f"NodeClaims of NodePool {name}", Verdict.DIFFERS, text, fix)
    for name, count in sorted(kept.items()):
        noun = "NodeClaim is" if count == 1 else "NodeClaims are"
        yield AdoptionFinding(f"NodeClaims of NodePool {name}", Verdict.COMPATIBLE, f"{count} {noun} kept as they are")


def _claim_finding(claim: NodeClaim, has_pool: bool) -> AdoptionFinding | None:
    """What is special about a claim; None for one that is simply kept."""
    subject = f"NodeClaim {claim.metadata.name}"
    if not has_pool:
        text = "belongs to no NodePool that is there; it is left alone and counts nowhere"
        return AdoptionFinding(subject, Verdict.DIFFERS, text, "delete it if its instance is not wanted")
    if claim.metadata.deletion_timestamp is not None:
        return AdoptionFinding(subject, Verdict.COMPATIBLE, "is being deleted; its drain goes on")
    if not claim.status.provider_id:
        text = "is not launched yet; Karpenter may have asked for an instance whose ID it has not written"
        return AdoptionFinding(subject, Verdict.CHANGE_FIRST, text, "stop Karpenter when it is launched, or delete it")
    if conditions.is_true(claim.status.conditions, conditions.DRIFTED):
        return AdoptionFinding(subject, Verdict.COMPATIBLE, "has drifted and stays so; it is replaced within budgets")
    return None


def _is_of_older_template(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether both have stamps of one foreign version that differ."""
    versions = {wire.metadata.annotations.get(labels.NODE_POOL_HASH_VERSION) for wire in (claim, pool)}
    hashes = {wire.metadata.annotations.get(labels.NODE_POOL_HASH) for wire in (claim, pool)}
    is_foreign = len(versions) == 1 and versions.isdisjoint({None, nodepool_hash.NODE_POOL_HASH_VERSION})
    return is_foreign and len(hashes) > 1


def _node_findings(adoption_input: AdoptionInput) -> Iterator[AdoptionFinding]:
    claimed = {claim.status.provider_id for claim in adoption_input.claims}
    for node in adoption_input.nodes:
        if labels.NODE_POOL in node.metadata.labels and node.spec.provider_id not in claimed:
            text = "has a NodePool's label and no NodeClaim; it takes pods, and is neither disrupted nor ended"
            fix = "find out who made its instance; delete the Node and the instance if nobody needs them"
            yield AdoptionFinding(f"Node {node.metadata.name}", Verdict.DIFFERS, text, fix)


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(sorted(names)[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
