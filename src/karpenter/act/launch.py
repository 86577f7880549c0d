"""Launch: one machine per claim, whatever is lost on the way (OPS §1.2).

The provider's answer is remembered per claim until the claim shows it, so that a lost status write never asks twice; across
restarts the provider itself must recognise the claim (OPS-211). The same holds for a claim whose provider ID was taken away or
changed into that of another's machine: asked once more, the cloud tells which one is the claim's own.
"""

from __future__ import annotations

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.ending import give_up
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.ownership import other_owner
from karpenter.act.pauses import Pauses
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, labels
from karpenter.model import resources as res
from karpenter.providers.contract import (
    Instance,
    InsufficientCapacity,
    LaunchFailed,
    NodeClassNotReady,
    ProviderError,
)

_LONGEST_MESSAGE = 300
_log = structlog.get_logger()


def cut(text: str) -> str:
    """A provider's message at the length conditions and events carry (OPS-016)."""
    return text if len(text) < _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


class Launcher:
    """Buys machines and remembers the answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bought: dict[str, tuple[str, Instance]] = {}
        self._failed: dict[str, tuple[str, str, str]] = {}
        self._pauses = Pauses()

    def forget(self, name: str) -> None:
        """The claim is gone or shows its machine."""
        self._bought.pop(name, None)
        self._failed.pop(name, None)
        self._pauses.forget(name)

    def bought(self, claim: NodeClaim) -> str:
        """Provider ID of a machine that was bought for the claim and may not be written down yet; empty when there is none."""
        uid, instance = self._bought.get(claim.metadata.name, ("", None))
        return instance.provider_id if instance is not None and uid == claim.metadata.uid else ""

    async def step(self, draft: Draft) -> None:
        """Launch the claim unless it is decided already (OPS-010)."""
        if not self._lacks_machine(draft):
            self._settle(draft)
            return
        pause = self._pauses.left(draft.claim)
        if pause > 0:
            self._tell(draft)
            draft.look_again(pause)
            return
        try:
            instance = await self._instance(draft)
        except (InsufficientCapacity, NodeClassNotReady) as error:
            await self._refused(draft, error)
        except ProviderError as error:
            self._failed[draft.name] = (draft.claim.metadata.uid, *_told(error))
            self._tell(draft)
            draft.errors.append(error)
            self._pauses.lengthen(draft.claim)
        else:
            self._fill(draft, instance)
            draft.expected_node = instance.node_name

    def _tell(self, draft: Draft) -> None:
        """Why the last attempt failed. A cloud may write on the claim meanwhile; what was to be told at once is lost then."""
        uid, reason, message = self._failed.get(draft.name, ("", "", ""))
        if uid == draft.claim.metadata.uid:
            draft.set("Launched", conditions.UNKNOWN, reason, message)

    def _lacks_machine(self, draft: Draft) -> bool:
        """Whether the cloud must be asked. A claim that registered has had its machine: what it lost is not bought anew."""
        claim, is_registered = draft.claim, draft.is_true("Registered")
        if claim.status.provider_id:
            nodes = self._world.state.nodes_of(claim.status.provider_id)
            return not is_registered and any(other_owner(claim, node, self._world.state) for node in nodes)
        launched = conditions.status(claim.status.conditions, "Launched")
        return launched == conditions.UNKNOWN or (launched == conditions.TRUE and not is_registered)

    def _settle(self, draft: Draft) -> None:
        """A provider ID is written together with Launched: where only the one is left, somebody took the other away."""
        if draft.claim.status.provider_id:
            self.forget(draft.name)
            if not draft.is_true("Launched"):
                draft.set("Launched", conditions.TRUE)

    async def _refused(self, draft: Draft, error: InsufficientCapacity | NodeClassNotReady) -> None:
        """What is refused now is planned again, not asked for again (OPS-014, OPS-015)."""
        has_class = isinstance(error, InsufficientCapacity)
        event = "InsufficientCapacityError" if has_class else "NodeClassNotReady"
        text = f"NodeClaim {draft.name} event: {cut(str(error))}"
        _log.error("failed launching nodeclaim", error=str(error))
        self._world.events.publish(Happening(about_claim(draft.claim.metadata), WARNING, event, text))
        await give_up(draft, self._world, "insufficient_capacity" if has_class else "nodeclass_not_ready")

    async def _instance(self, draft: Draft) -> Instance:
        uid, instance = self._bought.get(draft.name, ("", None))
        if instance is None or uid != draft.claim.metadata.uid:
            instance = await self._world.provider.create(draft.claim)
            self._bought[draft.name] = (draft.claim.metadata.uid, instance)
        return instance

    @staticmethod
    def _fill(draft: Draft, instance: Instance) -> None:
        """What the cloud answered, on the claim (OPS-011): the claim's labels win, the provider's annotations win."""
        draft.merge_metadata({**instance.labels, **draft.claim.metadata.labels}, instance.annotations)
        draft.status(
            msgspec.structs.replace(
                draft.claim.status,
                provider_id=instance.provider_id,
                image_id=instance.image_id,
                capacity=res.to_wire(instance.capacity),
                allocatable=res.to_wire(instance.allocatable),
            )
        )
        draft.set("Launched", conditions.TRUE)
        resolved = draft.claim.metadata.labels
        details = {
            "provider-id": instance.provider_id,
            "instance-type": resolved.get(labels.INSTANCE_TYPE, ""),
            "zone": resolved.get(labels.ZONE, ""),
            "capacity-type": resolved.get(labels.CAPACITY_TYPE, ""),
            "allocatable": res.to_wire(instance.allocatable),
        }
        draft.announce(lambda: _log.info("launched nodeclaim", **details))


def _told(error: ProviderError) -> tuple[str, str]:
    """Reason and message of a launch that failed (OPS-016). A reason no condition can have stands before the message."""
    if not isinstance(error, LaunchFailed):
        return "LaunchFailed", cut(str(error))
    if conditions.is_reason(error.reason):
        return error.reason, error.message
    return "LaunchFailed", cut(f"{error.reason}: {error.message}")
