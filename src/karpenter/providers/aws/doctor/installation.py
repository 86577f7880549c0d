"""What of the product is installed in the cluster, and whether the controller may do its work there.

Before the installation nothing is there yet, and that is no fault: it is said and no more.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from karpenter.api import kinds
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.api.reviews import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.providers.aws.doctor.findings import Check, Finding

#: No object is called so: asking for it tells whether its kind is served.
_NOBODY = "karpenter-doctor-asks-whether-this-kind-is-served"
_KINDS = Check("kinds")
_RIGHTS = Check("rights in the cluster")
_NEEDED: tuple[Kind[Wire], ...] = (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS)  # type: ignore[assignment]


class Right(NamedTuple):
    """A verb on a resource of a group, perhaps on a part of it."""

    group: str
    resource: str
    subresource: str
    verb: str

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {name}.{self.group}" if self.group else f"{self.verb} {name}"


#: Without any of these nothing goes on. The whole list is in docs/install.md.
RIGHTS = (
    Right("karpenter.sh", "nodepools", "", "watch"),
    Right("karpenter.sh", "nodepools", "status", "patch"),
    Right("karpenter.sh", "nodeclaims", "", "create"),
    Right("karpenter.sh", "nodeclaims", "status", "patch"),
    Right("karpenter.k8s.aws", "ec2nodeclasses", "", "watch"),
    Right("karpenter.k8s.aws", "ec2nodeclasses", "", "patch"),
    Right("karpenter.k8s.aws", "ec2nodeclasses", "status", "patch"),
    Right("", "nodes", "", "patch"),
    Right("", "nodes", "", "delete"),
    Right("", "pods", "", "watch"),
    Right("", "pods", "eviction", "create"),
    Right("", "pods", "status", "patch"),
    Right("", "events", "", "create"),
)


async def installation(kube: Kube, service_account: str) -> list[Finding]:
    """What is installed; ``service_account`` is the controller's, as ``namespace:name``."""
    missing = [kind for kind in _NEEDED if not await _is_served(kube, kind)]
    if len(missing) == len(_NEEDED):
        text = "Karpenter's kinds are not installed yet"
        return [_KINDS.warning(text, "nothing before the installation", "kubectl apply -f deploy/crds/crds.yaml")]
    if missing:
        names = ", ".join(f"{kind.name} {kind.api_version}" for kind in missing)
        mend = "kubectl apply -f deploy/crds/crds.yaml"
        return [_KINDS.failure(f"the cluster does not serve {names}", "the controller does not become ready", mend)]
    return [_KINDS.ok("all kinds are served"), *await _rights(kube, service_account)]


async def _is_served(kube: Kube, kind: Kind[Wire]) -> bool:
    try:
        await kube.get(kind, _NOBODY)
    except NotFound as answer:
        return answer.reason != KIND_NOT_SERVED
    return True


async def _rights(kube: Kube, service_account: str) -> list[Finding]:
    user = f"system:serviceaccount:{service_account}"
    try:
        answers = await asyncio.gather(*(_may(kube, user, right) for right in RIGHTS))
    except KubeError as error:
        mend = "look as somebody who may create subjectaccessreviews"
        return [_RIGHTS.warning(f"rights of {user} cannot be asked for: {error}", "nothing by itself", mend)]
    refused = [str(right) for right, allowed in zip(RIGHTS, answers, strict=True) if not allowed]
    if refused:
        text = f"{user} may not {', '.join(refused)}"
        return [_RIGHTS.failure(text, "the controller logs 403 and does nothing", "kubectl apply -k deploy/aws")]
    return [_RIGHTS.ok(f"{user} may do its work")]


async def _may(kube: Kube, user: str, right: Right) -> bool:
    wanted = ResourceAttributes(
        verb=right.verb, resource=right.resource, group=right.group, subresource=right.subresource
    )
    question = SubjectAccessReview(spec=SubjectAccessReviewSpec(user=user, resource_attributes=wanted))
    return (await kube.create(kinds.SUBJECT_ACCESS_REVIEW, question)).status.allowed
