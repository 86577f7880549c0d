"""Launch: one machine per claim, whatever is lost on the way (OPS §1.2).

The provider's answer is remembered per claim until the claim shows it, so that a lost status write never asks twice; across
restarts the provider itself must recognise the claim (OPS-211). So are refusals: every refusal is written to the claim, every
write wakes the claim, and a cloud that words each refusal differently would be asked again without pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import NotFound
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
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)
_log = structlog.get_logger()


def cut(text: str) -> str:
    """A provider's message at the length conditions and events carry (OPS-016)."""
    return text if len(text) < _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


@dataclass(frozen=True)
class _Pause:
    """Until when a cloud that refused a claim is not asked again."""

    uid: str
    length: timedelta
    until: datetime


class Launcher:
    """Buys machines and remembers the answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bought: dict[str, tuple[str, Instance]] = {}
        self._pauses: dict[str, _Pause] = {}

    def forget(self, name: str) -> None:
        """The claim is gone or shows its machine."""
        self._bought.pop(name, None)
        self._pauses.pop(name, None)

    def bought(self, claim: NodeClaim) -> str:
        """Provider ID of a machine that was bought for the claim and may not be written down yet; empty when there is none."""
        uid, instance = self._bought.get(claim.metadata.name, ("", None))
        return instance.provider_id if instance is not None and uid == claim.metadata.uid else ""

    async def step(self, draft: Draft) -> None:
        """Launch the claim unless it is decided already (OPS-010)."""
        if conditions.status(draft.claim.status.conditions, "Launched") != conditions.UNKNOWN:
            self.forget(draft.name)
            return
        pause = self._pauses.get(draft.name)
        if pause is not None and pause.uid == draft.claim.metadata.uid and draft.now < pause.until:
            draft.look_again((pause.until - draft.now).total_seconds())
            return
        try:
            instance = await self._instance(draft)
        except InsufficientCapacity as error:
            _log.error("failed launching nodeclaim", error=str(error))
            self._world.events.publish(_no_capacity(draft, error))
            await give_up(draft, self._world)
        except NodeClassNotReady as error:
            _log.error("failed launching nodeclaim", error=str(error))
            await give_up(draft, self._world)
        except ProviderError as error:
            reason = error.reason if isinstance(error, LaunchFailed) else "LaunchFailed"
            draft.set("Launched", conditions.UNKNOWN, reason, cut(str(error)))
            draft.errors.append(error)
            self._pause(draft)
        else:
            self._fill(draft, instance)
            draft.expected_node = instance.node_name

    def _pause(self, draft: Draft) -> None:
        uid = draft.claim.metadata.uid
        last = self._pauses.get(draft.name)
        length = min(_LONGEST_PAUSE, 2 * last.length) if last is not None and last.uid == uid else _FIRST_PAUSE
        self._pauses[draft.name] = _Pause(uid, length, draft.now + length)

    async def _instance(self, draft: Draft) -> Instance:
        uid, instance = self._bought.get(draft.name, ("", None))
        if instance is None or uid != draft.claim.metadata.uid:
            instance = await self._world.provider.create(draft.claim)
            self._bought[draft.name] = (draft.claim.metadata.uid, instance)
        return instance

    @staticmethod
    def _fill(draft: Draft, instance: Instance) -> None:
        """What the cloud answered, on the claim (OPS-011): the claim's labels win, the provider's annotations win."""
        meta = draft.claim.metadata
        draft.merge_metadata({**instance.labels, **meta.labels}, {**meta.annotations, **instance.annotations})
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


async def give_up(draft: Draft, world: World) -> None:
    """Delete the claim; its pods are planned anew."""
    draft.gone = True
    try:
        await world.kube.delete(NODE_CLAIM, draft.name, uid=draft.claim.metadata.uid)
    except NotFound:
        return


def _no_capacity(draft: Draft, error: ProviderError) -> Happening:
    text = f"NodeClaim {draft.name} event: {cut(str(error))}"
    return Happening(about_claim(draft.claim.metadata), WARNING, "InsufficientCapacityError", text)
