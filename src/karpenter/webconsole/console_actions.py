"""What a viewer may do: with their own rights, and each the same as a kubectl command that is shown beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from karpenter.api import kinds
from karpenter.api.core import ConfigMap
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import AlreadyExists, NotFound
from karpenter.kube.protocol import Json, Kube
from karpenter.model import clock, freezes, labels

#: Longer pauses are no action of a moment; kubectl sets any.
MAX_HOURS = 24 * 31
_MAX_REASON_LENGTH = 200


class ActionKind(StrEnum):
    """The actions."""

    FREEZE = "freeze"
    THAW = "thaw"
    WAKE = "wake"
    KEEP_NODE = "keep-node"
    RELEASE_NODE = "release-node"
    #: What approves the plan of a drained node: its NodeClaim is deleted, so the controller drains and replaces the node.
    DRAIN_NODE = "drain-node"


class UnknownAction(Exception):
    """The request names no action; the message says what is wrong."""


@dataclass(frozen=True)
class ConsoleAction:
    """An action. ``target``: a NodePool or Node, of a drain a NodeClaim; empty for the whole cluster where possible.

    ``until``: its end, None without one. ``reason``: shown wherever it has consequences.
    """

    kind: ActionKind
    target: str
    until: datetime | None = None
    reason: str = ""


def parse_action(body: Mapping[str, object], now: datetime) -> ConsoleAction:
    """The action of a request. Raises ``UnknownAction``."""
    try:
        kind = ActionKind(str(body.get("action", "")))
    except ValueError:
        raise UnknownAction(f"expected one of {', '.join(ActionKind)}") from None
    target, reason, hours = str(body.get("target", "")), str(body.get("reason", "")), body.get("hours")
    if len(reason) > _MAX_REASON_LENGTH:
        raise UnknownAction(f"the reason is longer than {_MAX_REASON_LENGTH} characters")
    if not target and kind not in (ActionKind.FREEZE, ActionKind.THAW):
        raise UnknownAction(f"{kind} needs a target")
    if target and not labels.is_dns_subdomain(target):
        raise UnknownAction(f"{target!r} is not the name of an object")
    until = now + timedelta(hours=_hours(hours)) if hours is not None else None
    if kind is ActionKind.WAKE and until is None:
        raise UnknownAction("wake needs hours")
    return ConsoleAction(kind, target, until, reason)


def _hours(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_HOURS:
        raise UnknownAction(f"hours must be above 0 and at most {MAX_HOURS}")
    return float(value)


def kubectl_line(action: ConsoleAction, there: ConfigMap | None = None) -> str:
    """The command that does the same. ``there``: the freeze of the cluster as it is now, None without one."""
    if not action.target:
        return _cluster_line(action, there)
    if action.kind is ActionKind.DRAIN_NODE:
        return f"kubectl delete nodeclaim {shlex.quote(action.target)} --wait=false"
    kind, notes = _annotations(action)
    words = (f"{key}-" if value is None else f"{key}={value}" for key, value in notes.items())
    quoted = " ".join(map(shlex.quote, words))
    return f"kubectl annotate --overwrite {kind.plural.removesuffix('s')} {shlex.quote(action.target)} {quoted}"


def _cluster_line(action: ConsoleAction, there: ConfigMap | None) -> str:
    place = f"configmap {freezes.FREEZE_CONFIG_MAP} --namespace {freezes.FREEZE_NAMESPACE}"
    if action.kind is ActionKind.THAW:
        return f"kubectl delete {place}"
    if there is not None:
        return f"kubectl patch {place} --type merge --patch {shlex.quote(json.dumps(_freeze_patch(action, there)))}"
    given = "".join(f" --from-literal={shlex.quote(f'{key}={value}')}" for key, value in _freeze_data(action).items())
    return f"kubectl create {place}{given}"


def _freeze_patch(action: ConsoleAction, there: ConfigMap) -> dict[str, Json]:
    """Members that are there already go: they might be what makes a freeze unreadable."""
    return {"data": {**dict.fromkeys(there.data), **_freeze_data(action)}}


def _freeze_data(action: ConsoleAction) -> dict[str, str]:
    until = clock.rfc3339(action.until) if action.until is not None else ""
    given = {freezes.REASON_KEY: action.reason, freezes.UNTIL_KEY: until}
    return {key: value for key, value in given.items() if value}


def _annotations(action: ConsoleAction) -> tuple[Kind[Wire], dict[str, str | None]]:
    """What is annotated on which kind; None removes an annotation."""
    until = clock.rfc3339(action.until) if action.until is not None else None
    # ``false`` would mean that there is no freeze.
    reason = "false." if action.reason == "false" else action.reason
    match action.kind:
        case ActionKind.FREEZE:
            return kinds.NODE_POOL, {labels.FREEZE: reason or "true", labels.FREEZE_UNTIL: until}  # type: ignore[return-value]
        case ActionKind.THAW:
            return kinds.NODE_POOL, {labels.FREEZE: None, labels.FREEZE_UNTIL: None}  # type: ignore[return-value]
        case ActionKind.WAKE:
            notes = {
                labels.KEEP_AWAKE_UNTIL: until,
                labels.KEEP_AWAKE_REASON: reason or None,
                labels.ASLEEP_UNTIL: None,
            }
            return kinds.NODE_POOL, notes  # type: ignore[return-value]
        case ActionKind.KEEP_NODE:
            return kinds.NODE, {labels.DO_NOT_DISRUPT: "true"}  # type: ignore[return-value]
        case ActionKind.RELEASE_NODE:
            return kinds.NODE, {labels.DO_NOT_DISRUPT: None}  # type: ignore[return-value]
        case ActionKind.DRAIN_NODE:
            raise ValueError("a drained node is not annotated")


async def perform(kube: Kube, action: ConsoleAction) -> None:
    """Do it. ``kube`` has the rights of the viewer. Raises ``KubeError``."""
    if action.kind is ActionKind.DRAIN_NODE:
        await kube.delete(kinds.NODE_CLAIM, action.target)
    elif action.target:
        kind, notes = _annotations(action)
        patch: dict[str, Json] = {"metadata": {"annotations": dict(notes)}}
        await kube.patch(kind, action.target, patch)
    elif action.kind is ActionKind.THAW:
        await kube.delete(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
    else:
        await _freeze_cluster(kube, action)


async def cluster_freeze(kube: Kube) -> ConfigMap | None:
    """The ConfigMap that freezes the cluster, None where there is none. Raises ``KubeError``."""
    try:
        return await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
    except NotFound:
        return None


async def _freeze_cluster(kube: Kube, action: ConsoleAction) -> None:
    data = _freeze_data(action)
    meta = ObjectMeta(name=freezes.FREEZE_CONFIG_MAP, namespace=freezes.FREEZE_NAMESPACE)
    try:
        await kube.create(kinds.CONFIG_MAP, ConfigMap(metadata=meta, data=data))
    except AlreadyExists:
        there = await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
        await kube.patch(
            kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, _freeze_patch(action, there), freezes.FREEZE_NAMESPACE
        )
