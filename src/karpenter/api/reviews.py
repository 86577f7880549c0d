"""Questions to the API server about what somebody may do (``authorization.k8s.io/v1``)."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, Wire


class ResourceAttributes(Wire, frozen=True, kw_only=True):
    """A verb on a resource. Empty namespace: in all of them."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""


class SubjectAccessReviewSpec(Wire, frozen=True, kw_only=True):
    """Who wants to do what."""

    user: str
    resource_attributes: ResourceAttributes


class SubjectAccessReviewStatus(Wire, frozen=True, kw_only=True):
    """The answer."""

    allowed: bool = False


class SubjectAccessReview(Wire, frozen=True, kw_only=True):
    """A question, which comes back with its answer and is not kept."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SubjectAccessReviewSpec
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()
