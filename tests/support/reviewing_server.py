"""An API server with a few users and their rights, and the parts of a console that authenticate viewers with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from karpenter.api import kinds
from karpenter.api.control_plane import SubjectAccessReviewStatus, TokenReviewStatus, TokenReviewUser
from karpenter.cli import planning_options
from karpenter.cli.top_answers import explain
from karpenter.console.console_input import ClusterWires
from karpenter.kube.errors import ServerUnavailable
from karpenter.settings import Settings
from karpenter.webconsole.console_app import ConsoleParts
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.viewer_access import KubernetesAccess
from support.builders import pod
from support.console_cases import StagedSource, console_input
from support.disruption_cases import pool, running

NAMESPACES = ("default", "shop", "secret")
Right = tuple[str, str]
EVERYTHING = frozenset(
    (kind.plural, "")
    for kind in (
        kinds.NODE,
        kinds.NODE_CLAIM,
        kinds.NODE_POOL,
        kinds.POD,
        kinds.DAEMON_SET,
        kinds.POD_DISRUPTION_BUDGET,
        kinds.NAMESPACE,
        kinds.PERSISTENT_VOLUME,
        kinds.PERSISTENT_VOLUME_CLAIM,
        kinds.STORAGE_CLASS,
    )
)
#: Plural and namespace (empty: all) of what a token's user may list.
RIGHTS: Mapping[str, frozenset[Right]] = {
    "admin": EVERYTHING,
    "nobody": frozenset(),
    "shopkeeper": frozenset({("pods", "shop")}),
    "operator": frozenset({("nodes", "")}),
    "almost": EVERYTHING - {("poddisruptionbudgets", "")},
}


@dataclass
class ReviewingServer:
    """The two reviews of an API server with these rights; everything else is refused by having no answer."""

    rights: dict[str, frozenset[Right]] = field(default_factory=lambda: dict(RIGHTS))
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    async def create(self, kind: Any, obj: Any) -> Any:
        if self.is_down:
            raise ServerUnavailable("no route to host")
        self.asked.append(kind.name)
        if kind.name == "TokenReview":
            known = obj.spec.token in self.rights
            user = TokenReviewUser(username=obj.spec.token, uid="1", groups=("team",), extra={"k": ("v",)})
            status = TokenReviewStatus(authenticated=known, user=user if known else TokenReviewUser())
            return msgspec.structs.replace(obj, status=status)
        spec = obj.spec
        assert (spec.uid, spec.groups, spec.extra) == ("1", ("team",), {"k": ("v",)}), "all of the user is asked about"
        right = (spec.resource_attributes.resource, spec.resource_attributes.namespace)
        allowed = spec.resource_attributes.verb == "list" and right in self.rights[spec.user]
        return msgspec.structs.replace(obj, status=SubjectAccessReviewStatus(allowed=allowed))


WAITING = [
    pod(name, {"cpu": "100"}, meta={"namespace": place}) for name, place in (("p-shop", "shop"), ("p-secret", "secret"))
]
CLUSTER = (pool("np-hidden"), running("n-hidden", "m", 1, pool="np-hidden"), WAITING)


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0


def reviewed_parts(
    server: ReviewingServer,
    clock: Clock | None = None,
    namespaces: tuple[str, ...] = NAMESPACES,
    **further: object,
) -> ConsoleParts:
    given = console_input(*CLUSTER)
    (view,) = [view for view in given.snapshot.nodes if view.claim is not None]
    assert view.claim is not None
    given = replace(given, wires=ClusterWires((view.claim,), given.snapshot.pools))
    feeds = ConsoleFeeds(StagedSource(given), planning_options.disruption_options(Settings()))
    at = clock or Clock()
    access = KubernetesAccess(server, lambda: namespaces, lambda: at.now)
    return ConsoleParts(feeds, access, explain, **further)
