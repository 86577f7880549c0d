"""The reconcile of a class: its parts in order, one write, and its end (AWS-080 to AWS-084, AWS-123)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import structlog
from msgspec.structs import replace

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassStatus
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.api.meta import Condition
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Writer
from karpenter.metrics import Metrics
from karpenter.model import conditions, labels
from karpenter.model.clock import Clock
from karpenter.model.conditions import ConditionTypes
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import LaunchTemplateApi
from karpenter.providers.aws.aws_context import AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import Ec2Filter
from karpenter.providers.aws.nodeclass.instance_profiles import (
    InstanceProfileProvider,
    legacy_profile_name,
    node_class_profile_path,
)
from karpenter.providers.aws.nodeclass.nodeclass_hash import NodeClassHashInputs, NodeClassHashStamper, uses_node_class
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    MINUTE,
    NodeClassSubreconciler,
    SubreconcileResult,
    condition_unknown,
)
from karpenter.providers.contract import ProviderError
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.reconciler import Reconciler

_MAX_CONCURRENT_RECONCILES = 10
#: How soon to reconcile a class again that changed in between.
_CONFLICT_REQUEUE_SECONDS = 0.2
_log = structlog.get_logger()


class NodeClassReconcileFailed(ProviderError):
    """Parts of a reconcile of a class failed; the others were carried out and written."""


@dataclass(frozen=True)
class NodeClassReconcileContext:
    """What a reconcile needs besides its subreconcilers.

    ``node_class_named`` gives a class as last watched, ``cluster`` the cluster as it is now.
    """

    kube: Writer
    clock: Clock
    condition_types: ConditionTypes
    node_class_named: Callable[[str], EC2NodeClass | None]
    cluster: Callable[[], AwsClusterInfo]


class NodeClassController:
    """Keeps EC2NodeClasses up to date. ``subreconcilers`` run in this order."""

    def __init__(
        self,
        context: NodeClassReconcileContext,
        subreconcilers: Sequence[NodeClassSubreconciler],
        hash_stamper: NodeClassHashStamper,
        hash_inputs: NodeClassHashInputs,
        termination: NodeClassTermination,
        metrics: Metrics,
    ) -> None:
        self._context = context
        self._subreconcilers = tuple(subreconcilers)
        self._hash_stamper = hash_stamper
        self._hash_inputs = hash_inputs
        self._termination = termination
        self.reconciler: Reconciler[str] = Reconciler(
            "nodeclass", self.reconcile, _MAX_CONCURRENT_RECONCILES, cast(ObjectKind, EC2_NODE_CLASS), metrics
        )

    def on_node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """A class appeared, changed or went (AWS-080)."""
        node_class = new or old
        if node_class is not None:
            self.reconciler.add(node_class.metadata.name)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim appeared, changed or went: the last, the class may be waiting for (AWS-080)."""
        if old is not None and new is None and old.spec.node_class_ref.kind == EC2_NODE_CLASS.name:
            self.reconciler.add(old.spec.node_class_ref.name)

    async def reconcile(self, name: str) -> float | None:
        """Bring one class up to date; seconds until the next reconcile, None to wait for events.

        Raises ``NodeClassReconcileFailed``, ``AwsError`` and ``KubeError``.
        """
        node_class = self._context.node_class_named(name)
        if node_class is None:
            self._hash_inputs.forget(name)
            return None
        try:
            if node_class.metadata.deletion_timestamp is not None:
                return await self._reconcile_deleted(node_class)
            return await self._reconcile_live(await self._with_finalizer(node_class))
        except Conflict:
            return _CONFLICT_REQUEUE_SECONDS
        except NotFound:
            return None

    async def _reconcile_deleted(self, node_class: EC2NodeClass) -> float | None:
        lifted = self._with_initialized_conditions(node_class)
        return await self._termination.reconcile(await self._patch_status(node_class, lifted.status))

    async def _with_finalizer(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """The class with our finalizer (AWS-081)."""
        meta = node_class.metadata
        if TERMINATION_FINALIZER in meta.finalizers:
            return node_class
        patch = {"metadata": {"finalizers": [*meta.finalizers, TERMINATION_FINALIZER]}}
        return await self._context.kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)

    async def _reconcile_live(self, node_class: EC2NodeClass) -> float | None:
        cluster = self._context.cluster()
        # Stamped before it can be ready: what is launched of this edition must not carry the hash of the one before.
        stamped = await self._hash_stamper.stamp(node_class, cluster)
        self._hash_inputs.remember(stamped, cluster)
        reconciled, results = await self._run_subreconcilers(stamped)
        written = await self._patch_status(stamped, reconciled.status)
        faults = [result.error for result in results if result.error is not None]
        if faults:
            raise NodeClassReconcileFailed("; ".join(map(str, faults))) from faults[0]
        final = [result.condition for result in results if result.terminal and result.condition is not None]
        if final:
            _log_terminal(written, final)
            return None
        return min((result.requeue_after for result in results if result.requeue_after is not None), default=None)

    async def _run_subreconcilers(self, node_class: EC2NodeClass) -> tuple[EC2NodeClass, list[SubreconcileResult]]:
        """Run all subreconcilers, also after one that failed (AWS-082). Returns the class afterwards, and all results."""
        reconciled = self._with_initialized_conditions(node_class)
        results: list[SubreconcileResult] = []
        for part in self._subreconcilers:
            try:
                results.append(await part.reconcile(reconciled))
            except (AwsError, ProviderError) as error:
                results.append(SubreconcileResult(reconciled.status, error=error))
            reconciled = self._with_result(reconciled, part, results[-1])
        return reconciled, results

    def _with_result(
        self, node_class: EC2NodeClass, subreconciler: NodeClassSubreconciler, result: SubreconcileResult
    ) -> EC2NodeClass:
        current = node_class.status.conditions
        condition = result.condition or _awaiting_condition(current, subreconciler.condition, result.error)
        if condition is not None:
            owner = conditions.conditioned_object(
                self._context.condition_types, node_class.metadata, self._context.clock.now()
            )
            current = conditions.set_condition(current, condition, owner)
        return replace(node_class, status=replace(result.status, conditions=current))

    def _with_initialized_conditions(self, node_class: EC2NodeClass) -> EC2NodeClass:
        owner = conditions.conditioned_object(
            self._context.condition_types, node_class.metadata, self._context.clock.now()
        )
        # The condition of a gate that was switched off since would stay for ever.
        kept = [
            condition
            for condition in node_class.status.conditions
            if condition.type in self._context.condition_types.all_types
        ]
        initialized = conditions.with_missing_conditions(kept, owner)
        return replace(node_class, status=replace(node_class.status, conditions=initialized))

    async def _patch_status(self, node_class: EC2NodeClass, status: EC2NodeClassStatus) -> EC2NodeClass:
        """Write a status, if it differs, over the one it was made from (AWS-083)."""
        patch = merge_patch(node_class.status, status)
        if not patch:
            return node_class
        meta = node_class.metadata
        return await self._context.kube.patch(
            EC2_NODE_CLASS, meta.name, {"status": patch}, subresource="status", resource_version=meta.resource_version
        )


def _awaiting_condition(current: Sequence[Condition], type_: str, error: Exception | None) -> Condition | None:
    """A condition that was never decided goes on waiting, but says for what; others stay as they are (AWS-084)."""
    if error is None or conditions.condition_status(current, type_) != conditions.UNKNOWN:
        return None
    return condition_unknown(type_, conditions.AWAITING_RECONCILIATION, str(error))


def _log_terminal(node_class: EC2NodeClass, terminal: Sequence[Condition]) -> None:
    for condition in terminal:
        fields = {"EC2NodeClass": {"name": node_class.metadata.name}, "reason": condition.reason}
        _log.error("nodeclass cannot be used until it is changed", error=condition.message, **fields)


#: AWS-063
TERMINATION_FINALIZER = f"{labels.AWS_GROUP}/termination"
_WAIT_SECONDS = 10 * MINUTE
_MAX_NAMED = 5


class NodeClassCleanup:
    """Deletes from AWS what was made for a class. ``profiles`` is None in a VPC that cannot reach IAM (AWS-004)."""

    def __init__(
        self, profiles: InstanceProfileProvider | None, templates: LaunchTemplateApi, cluster: AwsClusterInfo
    ) -> None:
        self._profiles = profiles
        self._templates = templates
        self._cluster = cluster

    async def delete(self, node_class: EC2NodeClass) -> None:
        """Delete profiles and launch templates. Raises ``AwsError``; calling again goes on."""
        if self._profiles is not None:
            await self._delete_profiles(self._profiles, node_class)
        await self._delete_templates(node_class)

    async def _delete_profiles(self, profiles: InstanceProfileProvider, node_class: EC2NodeClass) -> None:
        legacy = legacy_profile_name(self._cluster, node_class)
        for name in (
            *await profiles.list(node_class_profile_path(self._cluster, node_class)),
            *((legacy,) if legacy else ()),
        ):
            await profiles.delete(name)

    async def _delete_templates(self, node_class: EC2NodeClass) -> None:
        filters = (
            Ec2Filter(name=f"tag:{aws_labels.CLUSTER_TAG}", values=(self._cluster.name,)),
            Ec2Filter(name=f"tag:{aws_labels.NODE_CLASS}", values=(node_class.metadata.name,)),
        )
        for template in await self._templates.describe_launch_templates(filters=filters):
            try:
                await self._templates.delete_launch_template(template.launch_template_id)
            except AwsError as error:
                if not error.is_not_found:
                    raise
            fields = {"launch-template-name": template.launch_template_name, "id": template.launch_template_id}
            _log.info("deleted launch template", **fields)


class NodeClassTermination:
    """Finishes the deletion of a class. ``on_deleted`` runs when it may be forgotten."""

    def __init__(
        self,
        cleanup: NodeClassCleanup,
        kube: Writer,
        events: AwsEventRecorder,
        claims: Callable[[], Iterable[NodeClaim]],
        on_deleted: Callable[[EC2NodeClass], None],
    ) -> None:
        self._cleanup = cleanup
        self._kube = kube
        self._events = events
        self._claims = claims
        self._on_deleted = on_deleted

    async def reconcile(self, node_class: EC2NodeClass) -> float | None:
        """Take one step; seconds until the next reconcile. Raises ``AwsError`` and ``KubeError``."""
        meta = node_class.metadata
        if TERMINATION_FINALIZER not in meta.finalizers:
            return None
        waiting = sorted(claim.metadata.name for claim in self._claims() if uses_node_class(claim, meta.name))
        if waiting:
            message = f"Waiting on NodeClaim termination for {_listed_names(waiting)}"
            self._events.normal(EC2_NODE_CLASS, meta, "WaitingOnNodeClaimTermination", message)
            return _WAIT_SECONDS
        await self._cleanup.delete(node_class)
        remaining = [name for name in meta.finalizers if name != TERMINATION_FINALIZER]
        try:
            patch = {"metadata": {"finalizers": remaining}}
            await self._kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)
        except NotFound:
            pass
        self._on_deleted(node_class)
        return None


def _listed_names(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} other(s)" if rest > 0 else "")
