"""Telling owners of pods what ``karpenter.sh/do-not-disrupt`` does for them: nothing, until when, or no longer (DIS-092 ff.)."""

from __future__ import annotations

from karpenter.act.events import NORMAL, WARNING, Happening, about_pod
from karpenter.act.world import World
from karpenter.api.core import Pod
from karpenter.model import labels, pods
from karpenter.model.clock import rfc3339


def tell(world: World, pod: Pod) -> None:
    """Say on the pod what its annotation means now, where it is not the plain ``true`` (OPS-528, OPS-529)."""
    found = pods.protection(pod, world.clock.now())
    if found is None or not pods.is_active(pod):
        return
    if found.fault:
        text = f"Ignoring the annotation {labels.DO_NOT_DISRUPT}: {found.fault}"
        world.events.publish(Happening(about_pod(pod), WARNING, "InvalidDoNotDisruptAnnotation", text, (found.fault,)))
    elif found.until is not None:
        _tell_time(world, pod, rfc3339(found.until), active=found.active)


def _tell_time(world: World, pod: Pod, end: str, *, active: bool) -> None:
    if active:
        text = f"Pod is protected from disruption by the annotation {labels.DO_NOT_DISRUPT} until {end}"
        world.events.publish(Happening(about_pod(pod), NORMAL, "DoNotDisruptUntil", text, (end,)))
    else:
        text = f"Protection of the pod by the annotation {labels.DO_NOT_DISRUPT} ended at {end}"
        world.events.publish(Happening(about_pod(pod), NORMAL, "DoNotDisruptGracePeriodElapsed", text))
