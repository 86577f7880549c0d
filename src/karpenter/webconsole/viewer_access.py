"""Viewers and what they may see: the one user of a console on loopback, or users of Kubernetes by their tokens."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Protocol

from starlette.requests import Request

from karpenter.api import kinds
from karpenter.api.control_plane import (
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
    TokenReviewUser,
)
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.console.visible_objects import COMPLETE, Visibility
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Writer

_HOST_NAMES = frozenset({"127.0.0.1", "localhost"})
#: How long an answer of the API server counts: so long after a right is withdrawn, it may still be used.
ANSWER_SECONDS = 30.0
_MAX_REMEMBERED = 1000
#: Viewers whose rights in single namespaces are remembered, as many as may have a page open.
_MAX_NAMESPACE_RIGHTS = 200
#: Requests at once for one viewer.
_CONCURRENT_REVIEWS = 16
#: Namespaces a viewer sees pods of, and others that are asked about at a time: each is a question of its own.
MAX_NAMESPACES = 100
#: Tokens that are asked about at the same time: anyone may send any.
_MAX_UNDER_WAY = 32
#: Tokens are longer than this only by mistake or in bad faith.
_MAX_TOKEN_LENGTH = 16_384
#: What views are made of beside nodes, NodeClaims, NodePools and pods.
_OTHER_KINDS: tuple[Kind[Wire], ...] = (
    kinds.DAEMON_SET,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.STORAGE_CLASS,
)  # type: ignore[assignment]


@dataclass(frozen=True)
class Viewer:
    """A user of the console. ``token``: their bearer token; empty on loopback, where the kubeconfig is used.

    ``all_namespaces_checked``: whether their rights were checked in each namespace.
    """

    name: str
    visibility: Visibility
    token: str = field(default="", repr=False)
    all_namespaces_checked: bool = True


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered: an HTTP status and a sentence."""

    status: int
    reason: str


class ViewerAccess(Protocol):
    """Decides which requests have access."""

    #: ``secret-link`` or ``token``: how the page signs in.
    sign_in: str

    def refused(self, request: Request) -> Refusal | None:
        """Why nothing at all is answered, not even the page; None where it is."""

    async def viewer(self, request: Request) -> Viewer | Refusal:
        """The viewer who requests data."""


class SecretLinkAccess:
    """Access for the user who started the console: any request with the secret of the printed address.

    Other users of the machine and pages of other sites reach loopback, too. So every request needs the secret (afterwards a
    cookie that no other site can send) and the host name of that address, which a rebound DNS name has not.
    """

    sign_in = "secret-link"

    def __init__(self, secret: str, name: str) -> None:
        self._secret = secret
        self._name = name
        # Cookies do not know ports: each console has one of its own.
        self.cookie = f"karpenter-console-{sha256(secret.encode()).hexdigest()[:8]}"

    def refused(self, request: Request) -> Refusal | None:
        """See ``ViewerAccess.refused``."""
        if request.url.hostname not in _HOST_NAMES:
            return Refusal(421, "this host name is not one of the console")
        token = request.query_params.get("token") or request.cookies.get(self.cookie, "")
        if not hmac.compare_digest(token.encode(), self._secret.encode()):
            return Refusal(401, "open the address that karpenter console printed")
        return None

    async def viewer(self, request: Request) -> Viewer | Refusal:
        """See ``ViewerAccess.viewer``."""
        return self.refused(request) or Viewer(self._name, COMPLETE)


class KubernetesAccess:
    """Users of Kubernetes: the API server says whose a token is (TokenReview) and what they may list (SubjectAccessReview).

    The token comes in the Authorization header, which no other site can make a browser send.
    """

    sign_in = "token"

    def __init__(self, kube: Writer, namespaces: Callable[[], Iterable[str]], now: Callable[[], float]) -> None:
        """``namespaces``: the names of all there are, those that matter most first. ``now``: monotonic seconds."""
        self._kube = kube
        self._namespaces = namespaces
        self._now = now
        self._answers: OrderedDict[bytes, tuple[float, Viewer | Refusal]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Viewer | Refusal]] = {}
        self._namespace_rights: OrderedDict[bytes, _NamespaceRights] = OrderedDict()

    def refused(self, request: Request) -> Refusal | None:
        """The page itself contains no data."""
        return None

    async def viewer(self, request: Request) -> Viewer | Refusal:
        """See ``ViewerAccess.viewer``."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_LENGTH:
            return Refusal(401, "sign in with a token of Kubernetes")
        return await self._remembered(token)

    async def _remembered(self, token: str) -> Viewer | Refusal:
        """The answer of the last half minute; requests at the same time share one question."""
        key = sha256(token.encode()).digest()
        until, answer = self._answers.get(key, (0.0, Refusal(401, "")))
        if until > self._now():
            return answer
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= _MAX_UNDER_WAY:
                return Refusal(429, "too many people sign in at once; try again in a few seconds")
            task = self._under_way[key] = asyncio.create_task(self._ask(token, key))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        answer = await asyncio.shield(task)
        if not (isinstance(answer, Refusal) and answer.status >= 500):
            self._answers[key] = (self._now() + ANSWER_SECONDS, answer)
            while len(self._answers) > _MAX_REMEMBERED:
                self._answers.popitem(last=False)
        return answer

    async def _ask(self, token: str, key: bytes) -> Viewer | Refusal:
        try:
            review = await self._kube.create(kinds.TOKEN_REVIEW, TokenReview(spec=TokenReviewSpec(token=token)))
            if not review.status.authenticated or not review.status.user.username:
                return Refusal(401, "the API server does not accept this token; it may have expired")
            user = review.status.user
            rights = _Rights(self._kube, user)
            visibility, all_checked = await rights.visibility(), True
            if visibility.pod_namespaces is not None:
                known, namespaces = self._known_rights(key), tuple(self._namespaces())
                opened = await rights.open_namespaces(known, namespaces, self._now())
                visibility = replace(visibility, pod_namespaces=opened)
                all_checked = known.has_checked(namespaces)
        except KubeError as error:
            return Refusal(503, f"the API server cannot be asked who you are: {error}")
        if visibility.is_empty:
            later = "" if all_checked else "; not all namespaces have been checked yet: try again in 30 seconds"
            return Refusal(403, f"{user.username} may list none of nodes, nodeclaims, nodepools and pods{later}")
        return Viewer(user.username, visibility, token, all_checked)

    def _known_rights(self, key: bytes) -> _NamespaceRights:
        """What the API server said last about a viewer's rights in single namespaces."""
        known = self._namespace_rights.setdefault(key, _NamespaceRights())
        self._namespace_rights.move_to_end(key)
        if len(self._namespace_rights) > _MAX_NAMESPACE_RIGHTS:
            self._namespace_rights.popitem(last=False)
        return known


@dataclass
class _NamespaceRights:
    """Where one viewer may list pods, as the last answers said.

    Every question is about the open namespaces and some others: those never asked about, then those whose answer is oldest. So
    a cluster with more namespaces than are asked about at a time is asked about bit by bit.
    """

    opened: tuple[str, ...] = ()
    closed_at: dict[str, float] = field(default_factory=dict)

    def due(self, namespaces: Sequence[str]) -> list[str]:
        """The namespaces to ask about now; ``namespaces`` are those there are, those that matter most first."""
        opened = set(self.opened).intersection(namespaces)
        others = (name for name in namespaces if name not in opened)
        longest_ago = sorted(others, key=lambda name: self.closed_at.get(name, -math.inf))
        return [*(name for name in self.opened if name in opened), *longest_ago[:MAX_NAMESPACES]]

    def learn(self, answers: Mapping[str, bool], namespaces: Sequence[str], now: float) -> None:
        """Take what the API server says about single namespaces, and forget those there are no more."""
        self.opened = tuple(name for name, is_open in answers.items() if is_open)[:MAX_NAMESPACES]
        closed_at = self.closed_at | {name: now for name in answers if name not in self.opened}
        self.closed_at = {name: closed_at[name] for name in namespaces if name in closed_at}

    def has_checked(self, namespaces: Sequence[str]) -> bool:
        """Whether there has been an answer about each of them."""
        return all(name in self.closed_at or name in self.opened for name in namespaces)


class _Rights:
    """The rights of one user. All methods raise ``KubeError``."""

    def __init__(self, kube: Writer, user: TokenReviewUser) -> None:
        self._kube = kube
        self._user = user
        self._slots = asyncio.Semaphore(_CONCURRENT_REVIEWS)

    async def visibility(self) -> Visibility:
        """What they may list in the whole cluster."""
        nodes, claims, pools, pods, *others = await asyncio.gather(
            *map(self._may_list, (kinds.NODE, kinds.NODE_CLAIM, kinds.NODE_POOL, kinds.POD, *_OTHER_KINDS))  # type: ignore[arg-type]
        )
        return Visibility(nodes, claims, pools, None if pods else frozenset(), all(others))

    async def open_namespaces(self, known: _NamespaceRights, namespaces: Sequence[str], now: float) -> frozenset[str]:
        """Where they may list pods; ``known`` learns the answers."""
        due = known.due(namespaces)
        allowed = await asyncio.gather(*(self._may_list(kinds.POD, name) for name in due))  # type: ignore[arg-type]
        known.learn(dict(zip(due, allowed, strict=True)), namespaces, now)
        return frozenset(known.opened)

    async def _may_list(self, kind: Kind[Wire], namespace: str = "") -> bool:
        attributes = ResourceAttributes(verb="list", resource=kind.plural, group=kind.group, namespace=namespace)
        user = self._user
        spec = SubjectAccessReviewSpec(
            user=user.username, groups=user.groups, uid=user.uid, extra=user.extra, resource_attributes=attributes
        )
        async with self._slots:
            review = await self._kube.create(kinds.SUBJECT_ACCESS_REVIEW, SubjectAccessReview(spec=spec))
        return review.status.allowed
