"""Objects about the control plane itself: leases, CRDs, access reviews, Secrets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from karpenter.api.meta import ObjectMeta, Wire


class ResourceAttributes(Wire, frozen=True, kw_only=True):
    """A verb on a resource. Empty namespace: in all of them."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""


class SubjectAccessReviewSpec(Wire, frozen=True, kw_only=True):
    """The user and the action of an access review."""

    user: str
    resource_attributes: ResourceAttributes
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class SubjectAccessReviewStatus(Wire, frozen=True, kw_only=True):
    """The answer."""

    allowed: bool = False


class SubjectAccessReview(Wire, frozen=True, kw_only=True):
    """A question, which comes back with its answer and is not kept."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SubjectAccessReviewSpec
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class TokenReviewSpec(Wire, frozen=True, kw_only=True):
    """The token in question."""

    token: str = ""


class TokenReviewUser(Wire, frozen=True, kw_only=True):
    """Whose token it is."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class TokenReviewStatus(Wire, frozen=True, kw_only=True):
    """The answer."""

    authenticated: bool = False
    user: TokenReviewUser = TokenReviewUser()


class TokenReview(Wire, frozen=True, kw_only=True):
    """A question, which comes back with its answer and is not kept."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """The holder of a lease and its expiry. Times are RFC 3339 text with microseconds, as the API requires."""

    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True, kw_only=True):
    """A coordination lease."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class CustomResourceDefinitionStatus(Wire, frozen=True, kw_only=True):
    """The versions in which objects may still be stored."""

    stored_versions: tuple[str, ...] = ()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD; only its existence, conditions and stored versions are read back."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()


class Secret(Wire, frozen=True, kw_only=True):
    """A Secret. ``data`` is base64."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"
