"""Evicting pods from draining nodes by the Eviction API, at one pace for the whole cluster (DIS §17.4).

A drain says which pods of its node are wanted away now; the evictor asks for each until the drain wants it no more. So whatever
happens to a pod meanwhile (gone, protected, the node given back) is judged in one place, the drain, and here is only pace: one
token bucket for all calls, and per pod growing pauses after a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from karpenter.act.events import NORMAL, WARNING, Happening, about_node, about_pod
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.kube.errors import Conflict, KubeError, NotFound, TooManyRequests
from karpenter.kube.throttle import TokenBucket
from karpenter.model import pods

_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 10.0
#: How the API server refuses a pod with several budgets: as an error of its own (500), not as a refusal.
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
_FORCEFUL = "Forceful Termination"
_log = structlog.get_logger()


@dataclass(frozen=True)
class EvictionPace:
    """How fast evictions may be asked for: on average, at once, and how many calls may be under way (OPS-702, OPS-713)."""

    per_second: float = 100.0
    burst: int = 1000
    workers: int = 100


@dataclass
class _Wish:
    """A pod that is to go, and how the last try went."""

    pod: Pod
    node: Node
    backoff_seconds: float = 0.0
    refusal: KubeError | None = None


def first_tier(waiting: Sequence[Pod]) -> list[Pod]:
    """The pods that go next: ordinary before DaemonSet, uncritical before critical; one tier at a time (DIS-522)."""
    tiers: dict[tuple[bool, bool], list[Pod]] = {}
    for pod in waiting:
        tiers.setdefault((pods.is_critical(pod), pods.is_daemon(pod)), []).append(pod)
    return tiers[min(tiers)] if tiers else []


def is_refusal(error: KubeError) -> bool:
    """Whether an eviction was refused for the sake of a budget: its owner's wish, not a fault somebody has to mend."""
    return isinstance(error, TooManyRequests) or _SEVERAL_BUDGETS in str(error)


class Evictor:
    """Evicts the pods that drains want away. ``wake`` has ``look`` called with a key, soon."""

    def __init__(self, world: World, pace: EvictionPace, wake: Callable[[str], None]) -> None:
        self._world = world
        self._wake = wake
        self._limit = TokenBucket(pace.per_second, pace.burst)
        self._wishes: dict[str, _Wish] = {}
        self._of_node: dict[str, set[str]] = {}

    def want(self, node: Node, evictable: Sequence[Pod]) -> None:
        """These pods of the node are to go now, in this order, and no others."""
        keys = {_key(pod): pod for pod in evictable}
        for key in self._of_node.get(node.metadata.name, set()) - keys.keys():
            del self._wishes[key]
        for key, pod in keys.items():
            wish = self._wishes.get(key)
            if wish is None:
                self._wishes[key] = _Wish(pod, node)
                self._wake(key)
            else:
                wish.pod, wish.node = pod, node
        self._of_node[node.metadata.name] = set(keys)

    def withdraw(self, node_name: str) -> None:
        """No pod of the node is to go any more."""
        for key in self._of_node.pop(node_name, ()):
            del self._wishes[key]

    def refusals(self, node_name: str) -> Mapping[str, KubeError]:
        """Why pods of the node could not be evicted at the last try, by pod uid."""
        wishes = (self._wishes[key] for key in self._of_node.get(node_name, ()))
        return {wish.pod.metadata.uid: wish.refusal for wish in wishes if wish.refusal is not None}

    async def look(self, key: str) -> float | None:
        """Ask once for one pod, as soon as the pace allows; seconds until the next try, None when it is wanted no more."""
        if key not in self._wishes:
            return None
        await self._limit.take()
        wish = self._wishes.get(key)
        return None if wish is None else await self._ask(wish)

    async def _ask(self, wish: _Wish) -> float:
        """One call. A pod that was evicted or met another of its name is asked for again only if it stays for long."""
        meta = wish.pod.metadata
        try:
            await self._world.kube.evict(meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict) as error:
            self._count(error.status)
            wish.refusal = None
            return _LONGEST_BACKOFF_SECONDS
        except KubeError as error:
            self._count(error.status)
            return self._put_off(wish, error)
        self._count(200)
        wish.backoff_seconds, wish.refusal = 0.0, None
        reason = self._reason(wish.node)
        self._world.metrics.pods_drained_total.labels(reason=reason).inc()
        self._world.events.publish(Happening(about_pod(wish.pod), NORMAL, "Evicted", f"Evicted pod: {reason}"))
        return _LONGEST_BACKOFF_SECONDS

    def _count(self, status: int) -> None:
        """Every answer by its HTTP status (OPS-444); a call without an answer has none."""
        if status:
            self._world.metrics.pods_eviction_requests_total.labels(code=str(status)).inc()

    def _put_off(self, wish: _Wish, error: KubeError) -> float:
        self._say_failed(wish, error)
        wish.refusal = error
        wish.backoff_seconds = min(_LONGEST_BACKOFF_SECONDS, wish.backoff_seconds * 2 or _FIRST_BACKOFF_SECONDS)
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        return max(wish.backoff_seconds, min(_LONGEST_BACKOFF_SECONDS, asked))

    def _say_failed(self, wish: _Wish, error: KubeError) -> None:
        """Tell why a pod stays; in the log only what is a fault, and once."""
        namespace, name = wish.pod.metadata.namespace, wish.pod.metadata.name
        if not is_refusal(error) and str(error) != str(wish.refusal or ""):
            reference = {"namespace": namespace, "name": name}
            node = {"name": wish.node.metadata.name}
            _log.error("evicting pod failed", Pod=reference, Node=node, error=str(error))
        text = f"Failed to drain node, evicting pod {namespace}/{name}: {error}"
        about = about_node(wish.node.metadata)
        self._world.events.publish(Happening(about, WARNING, "FailedDraining", text, (namespace, name)))

    def _reason(self, node: Node) -> str:
        """Why the node goes, as its claim says; empty where node or claim is gone (DIS-534)."""
        claim = self._world.state.claim_of(node.spec.provider_id)
        if claim is None:
            return ""
        found = (c for c in claim.status.conditions if c.type == "DisruptionReason" and c.status == "True")
        return next((condition.reason for condition in found), _FORCEFUL)


def _key(pod: Pod) -> str:
    """A pod of the same name with another uid is another pod (DIS-531)."""
    meta = pod.metadata
    return f"{meta.namespace}/{meta.name}/{meta.uid}"
