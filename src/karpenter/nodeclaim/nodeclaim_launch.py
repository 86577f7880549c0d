"""Launch: one machine per claim, whatever is lost on the way (OPS §1.2).

The provider's answer is remembered per claim until the claim shows it, so that a lost status write never asks twice; across
restarts the provider itself must recognise the claim (OPS-211). The same holds for a claim whose provider ID was taken away or
changed into that of another's machine: asked once more, the cloud tells which one is the claim's own.
"""

from __future__ import annotations

import msgspec
import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, labels
from karpenter.model import resources as res
from karpenter.nodeclaim.node_ownership import other_owner
from karpenter.providers.contract import Instance, InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from karpenter.runtime.backoff_schedules import NodeClaimBackoff
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_MAX_MESSAGE_LENGTH = 300
_log = structlog.get_logger()


def truncate_message(text: str) -> str:
    """A provider's message at the length conditions and events carry (OPS-016)."""
    return text if len(text) < _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "..."


class NodeClaimLaunch:
    """Buys machines and remembers the answers."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._launched_instances: dict[str, tuple[str, Instance]] = {}
        self._launch_errors: dict[str, tuple[str, str, str]] = {}
        self._backoff = NodeClaimBackoff()

    def forget(self, name: str) -> None:
        """The claim is gone or shows its machine."""
        self._launched_instances.pop(name, None)
        self._launch_errors.pop(name, None)
        self._backoff.forget(name)

    def launched_provider_id(self, claim: NodeClaim) -> str:
        """Provider ID of a machine that was bought for the claim and may not be written down yet; empty when there is none."""
        uid, instance = self._launched_instances.get(claim.metadata.name, ("", None))
        return instance.provider_id if instance is not None and uid == claim.metadata.uid else ""

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Launch the claim unless it is decided already (OPS-010)."""
        if not self._needs_launch(draft):
            self._complete(draft)
            return
        pause = self._backoff.remaining_seconds(draft.claim)
        if pause > 0:
            self._set_launch_error(draft)
            draft.requeue_after(pause)
            return
        try:
            instance = await self._create_instance(draft)
        except (InsufficientCapacity, NodeClassNotReady) as error:
            await self._delete_refused(draft, error)
        except ProviderError as error:
            self._launch_errors[draft.name] = (draft.claim.metadata.uid, *_reason_and_message(error))
            self._set_launch_error(draft)
            draft.errors.append(error)
            self._backoff.next_delay(draft.claim)
        else:
            self._record_instance(draft, instance)
            draft.expected_node_name = instance.node_name

    def _set_launch_error(self, draft: NodeClaimDraft) -> None:
        """Why the last attempt failed. A cloud may write on the claim meanwhile; what was to be told at once is lost then."""
        uid, reason, message = self._launch_errors.get(draft.name, ("", "", ""))
        if uid == draft.claim.metadata.uid:
            draft.set_condition("Launched", conditions.UNKNOWN, reason, message)

    def _needs_launch(self, draft: NodeClaimDraft) -> bool:
        """Whether the cloud must be asked. A claim that registered has had its machine: what it lost is not bought anew."""
        claim, is_registered = draft.claim, draft.is_true("Registered")
        if claim.status.provider_id:
            nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
            return not is_registered and any(other_owner(claim, node, self._context.state) for node in nodes)
        launched = conditions.condition_status(claim.status.conditions, "Launched")
        return launched == conditions.UNKNOWN or (launched == conditions.TRUE and not is_registered)

    def _complete(self, draft: NodeClaimDraft) -> None:
        """A provider ID is written together with Launched: where only the one is left, somebody took the other away."""
        if draft.claim.status.provider_id:
            self.forget(draft.name)
            if not draft.is_true("Launched"):
                draft.set_condition("Launched", conditions.TRUE)

    async def _delete_refused(self, draft: NodeClaimDraft, error: InsufficientCapacity | NodeClassNotReady) -> None:
        """What is refused now is planned again, not asked for again (OPS-014, OPS-015)."""
        has_class = isinstance(error, InsufficientCapacity)
        event = "InsufficientCapacityError" if has_class else "NodeClassNotReady"
        text = f"NodeClaim {draft.name} event: {truncate_message(str(error))}"
        _log.error("failed launching nodeclaim", error=str(error))
        self._context.events.publish(ObjectEvent(involved_claim(draft.claim.metadata), WARNING, event, text))
        await delete_claim(draft, self._context, "insufficient_capacity" if has_class else "nodeclass_not_ready")

    async def _create_instance(self, draft: NodeClaimDraft) -> Instance:
        uid, instance = self._launched_instances.get(draft.name, ("", None))
        if instance is None or uid != draft.claim.metadata.uid:
            instance = await self._context.provider.create(draft.claim)
            self._launched_instances[draft.name] = (draft.claim.metadata.uid, instance)
        return instance

    @staticmethod
    def _record_instance(draft: NodeClaimDraft, instance: Instance) -> None:
        """What the cloud answered, on the claim (OPS-011): the claim's labels win, the provider's annotations win."""
        draft.merge_metadata({**instance.labels, **draft.claim.metadata.labels}, instance.annotations)
        draft.set_status(
            msgspec.structs.replace(
                draft.claim.status,
                provider_id=instance.provider_id,
                image_id=instance.image_id,
                capacity=res.resources_to_wire(instance.capacity),
                allocatable=res.resources_to_wire(instance.allocatable),
            )
        )
        draft.set_condition("Launched", conditions.TRUE)
        resolved = draft.claim.metadata.labels
        details = {
            "provider-id": instance.provider_id,
            "instance-type": resolved.get(labels.INSTANCE_TYPE, ""),
            "zone": resolved.get(labels.ZONE, ""),
            "capacity-type": resolved.get(labels.CAPACITY_TYPE, ""),
            "allocatable": res.resources_to_wire(instance.allocatable),
        }
        draft.after_write(lambda: _log.info("launched nodeclaim", **details))


def _reason_and_message(error: ProviderError) -> tuple[str, str]:
    """Reason and message of a launch that failed (OPS-016). A reason no condition can have stands before the message."""
    if not isinstance(error, LaunchFailed):
        return "LaunchFailed", truncate_message(str(error))
    if conditions.is_reason(error.reason):
        return error.reason, error.message
    return "LaunchFailed", truncate_message(f"{error.reason}: {error.message}")
