"""Actions: their kubectl lines do the same as they do, whatever the names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.core import ConfigMap, Node
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import NotFound
from karpenter.model import freezes
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.webconsole.console_actions import UnknownAction, cluster_freeze, kubectl_line, parse_action, perform
from support.builders import claim, node_pool

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
async def kube() -> MemoryKube:
    connected = MemoryKube(MemoryServer(FixedClock()))
    await connected.create(kinds.NODE_POOL, node_pool("np", ()))
    await connected.create(kinds.NODE, Node(metadata=ObjectMeta(name="n")))
    return connected


def annotations_of(line: str) -> Mapping[str, str | None]:
    """What a kubectl annotate line sets; None for what it removes."""
    words = shlex.split(line)
    assert words[:3] == ["kubectl", "annotate", "--overwrite"]
    given = (word.partition("=") for word in words[5:])
    return {key.removesuffix("-") if not equals else key: value if equals else None for key, equals, value in given}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"action": "freeze", "target": "np"}, kinds.NODE_POOL),
        ({"action": "freeze", "target": "np", "reason": "it's 'sale'; rm -rf /", "hours": 2}, kinds.NODE_POOL),
        ({"action": "freeze", "target": "np", "reason": "false"}, kinds.NODE_POOL),
        ({"action": "thaw", "target": "np"}, kinds.NODE_POOL),
        ({"action": "wake", "target": "np", "hours": 1.5, "reason": "tests"}, kinds.NODE_POOL),
        ({"action": "keep-node", "target": "n"}, kinds.NODE),
        ({"action": "release-node", "target": "n"}, kinds.NODE),
    ],
)
async def test_the_kubectl_line_says_what_is_written(kube: MemoryKube, body: dict[str, Any], kind: Any) -> None:
    action = parse_action(body, NOW)
    await perform(kube, action)
    line = kubectl_line(action)
    stored = (await kube.get(kind, body["target"])).metadata.annotations
    assert stored == {key: value for key, value in annotations_of(line).items() if value is not None}
    assert shlex.split(line)[3:5] == [kind.plural.removesuffix("s"), body["target"]]


async def test_an_approved_drain_deletes_the_nodeclaim_as_its_kubectl_line_does(kube: MemoryKube) -> None:
    await kube.create(kinds.NODE_CLAIM, claim("np-1"))
    action = parse_action({"action": "drain-node", "target": "np-1"}, NOW)
    assert kubectl_line(action) == "kubectl delete nodeclaim np-1 --wait=false"
    await perform(kube, action)
    with pytest.raises(NotFound):
        await kube.get(kinds.NODE_CLAIM, "np-1")
    assert (await kube.get(kinds.NODE, "n")).metadata.deletion_timestamp is None, "Nodes are the controller's to delete"


async def test_the_cluster_is_frozen_again_with_another_reason_and_thawed(kube: MemoryKube) -> None:
    there = ConfigMap(
        metadata=ObjectMeta(name=freezes.FREEZE_CONFIG_MAP, namespace=freezes.FREEZE_NAMESPACE),
        data={"unreadable": "x"},
    )
    await kube.create(kinds.CONFIG_MAP, there)
    action = parse_action({"action": "freeze", "reason": "the sale", "hours": 1}, NOW)
    shown = kubectl_line(action, await cluster_freeze(kube))
    assert shown.startswith(f"kubectl patch configmap {freezes.FREEZE_CONFIG_MAP} --namespace ")
    await perform(kube, action)
    read = await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
    assert dict(read.data) == {freezes.REASON_KEY: "the sale", freezes.UNTIL_KEY: "2026-01-01T13:00:00Z"}
    patched = json.loads(shlex.split(shown)[-1])["data"]
    assert patched == {"unreadable": None, **read.data}, "the line removes and sets the same"
    assert "--from-literal='reason=the sale'" in kubectl_line(action), "without a freeze it is created"
    thaw = parse_action({"action": "thaw"}, NOW)
    assert kubectl_line(thaw).startswith(f"kubectl delete configmap {freezes.FREEZE_CONFIG_MAP} ")
    await perform(kube, thaw)
    with pytest.raises(NotFound):
        await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": "delete", "target": "np"},
        {"action": "wake", "target": "np"},
        {"action": "keep-node"},
        {"action": "drain-node"},
        {"action": "freeze", "target": "np?dryRun=All"},
        {"action": "keep-node", "target": "../nodes/a"},
        {"action": "freeze", "target": "np", "hours": -1},
        {"action": "freeze", "target": "np", "hours": True},
        {"action": "freeze", "target": "np", "hours": "2"},
        {"action": "freeze", "target": "np", "hours": 1e9},
        {"action": "freeze", "target": "np", "reason": "x" * 201},
    ],
)
def test_what_is_no_action_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UnknownAction):
        parse_action(body, NOW)
