"""Which namespaces a console asks about first."""

from __future__ import annotations

from karpenter.console.visible_objects import namespaces_by_interest
from support.builders import pod


def _pod(namespace: str, node: str = "") -> object:
    return pod("p", {"cpu": "1"}, node_name=node, meta={"namespace": namespace})


def test_namespaces_with_waiting_pods_come_first_then_those_with_most_pods_then_by_name() -> None:
    pods = [_pod("busy", "n"), _pod("busy", "n"), _pod("small", "n"), _pod("waits"), _pod("gone")]
    order = namespaces_by_interest(["b-empty", "a-empty", "small", "waits", "busy"], pods)
    assert order == ("waits", "busy", "small", "a-empty", "b-empty")
