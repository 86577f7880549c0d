"""Keeps bootstrap tokens in the cluster: one per NodeClaim, or one per class and ten minutes (AWS-905 to AWS-916).

And what a cluster must have so that nodes can join it with a token (AWS-936). ``kubeadm init`` makes all of it. The names of the
bindings do not matter, their roles and groups do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import structlog

from karpenter.api.control_plane import Secret
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP, SECRET
from karpenter.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from karpenter.kube.protocol import Kube, Reader
from karpenter.model import conditions, labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.bootstrap.bootstrap_objects import CLUSTER_ROLE_BINDING, ClusterRoleBinding
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.bootstrap_token import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    NODE_CLAIM_LABEL,
    SECRET_TYPE,
    TOKEN_NAMESPACE,
    WINDOW_LABEL,
    BootstrapToken,
    TokenPurpose,
    new_token,
    stored_token,
    token_expiration,
    token_secret,
)
from karpenter.providers.contract import LaunchFailed

#: How long NodeClaims of a class share a token, and how long it is valid (AWS-916).
WINDOW = timedelta(minutes=10)
WINDOW_TTL = timedelta(minutes=30)
#: A token is used again only while it is valid for longer than this (AWS-912).
MIN_VALIDITY = timedelta(minutes=5)
_MAX_TRIES = 5
_SIGNATURE_WAIT_SECONDS, _SIGNATURE_POLL_SECONDS = 5.0, 0.2
PUBLIC_NAMESPACE, CLUSTER_INFO = "kube-public", "cluster-info"
_log = structlog.get_logger()


class TokenIssuer:
    """Issues and revokes tokens. ``choice`` picks one character at random."""

    def __init__(
        self,
        kube: Kube,
        settings: BootstrapSettings,
        cluster_name: str,
        clock: Clock,
        choice: Callable[[str], str] = secrets.choice,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._cluster_name = cluster_name
        self._clock = clock
        self._choice = choice
        #: By class: claims of a window that come at the same time make one token.
        self._locks: dict[str, asyncio.Lock] = {}
        self._holders: set[str] = set()

    def holds_token(self, claim_name: str) -> bool:
        """Whether a NodeClaim has a token of its own, as far as this process knows."""
        return claim_name in self._holders

    async def token_for(self, claim: NodeClaim, node_class: EC2NodeClass) -> BootstrapToken:
        """The token of a claim: the one it has while that is valid long enough, else a new one.

        Raises ``LaunchFailed`` (BootstrapTokenFailed).
        """
        purpose = self._purpose(claim, node_class)
        if purpose.claim is not None:
            self._holders.add(claim.metadata.name)
        try:
            async with self._locks.setdefault(purpose.node_class, asyncio.Lock()) if purpose.window else nullcontext():
                token = await self._reusable_token(purpose)
                if token is None:
                    token = await self._create(purpose)
                    await self._wait_for_signature(token)
                return token
        except KubeError as error:
            raise LaunchFailed("BootstrapTokenFailed", f"making a bootstrap token: {error}") from error

    async def prepare_next_window(self, node_classes: Iterable[str]) -> None:
        """Make the token of the next window for classes whose present one is in use (AWS-916). Raises ``KubeError``."""
        if self._settings.token_delivery is not TokenDelivery.WINDOW:
            return
        for name in node_classes:
            current, following = (
                TokenPurpose(self._cluster_name, "", name, window=self._window(later))
                for later in (timedelta(), WINDOW)
            )
            async with self._locks.setdefault(name, asyncio.Lock()):
                if await self._list(current.selector) and not await self._list(following.selector):
                    await self._create(following)

    async def revoke(self, claim_name: str) -> None:
        """Delete the tokens of a claim (AWS-911). Raises ``KubeError``."""
        selector = f"{MANAGED_BY_LABEL}={MANAGED_BY},{NODE_CLAIM_LABEL}={claim_name}"
        for secret in await self._list(selector):
            await self._delete(secret)
        self._holders.discard(claim_name)

    async def sweep(self, claims: Iterable[NodeClaim]) -> None:
        """Delete every token that no claim needs (AWS-911), and learn which claims hold one. Raises ``KubeError``."""
        waiting = {
            claim.metadata.name: claim
            for claim in claims
            if not conditions.is_true(claim.status.conditions, conditions.REGISTERED)
        }
        for secret in await self._list(f"{MANAGED_BY_LABEL}={MANAGED_BY}"):
            holder = secret.metadata.labels.get(NODE_CLAIM_LABEL, "")
            if self._is_needed(secret, waiting.values()):
                self._holders |= {holder} - {""}
            else:
                await self._delete(secret)
                self._holders.discard(holder)

    def _is_needed(self, secret: Secret, waiting: Iterable[NodeClaim]) -> bool:
        own = secret.metadata.labels
        window = own.get(WINDOW_LABEL)
        if window is None:
            return any(_is_holder(secret, claim) for claim in waiting)
        is_open = self._clock.now() < datetime.fromtimestamp(int(window), UTC) + WINDOW
        of_class = own.get(aws_labels.NODE_CLASS)
        return is_open or any(claim.spec.node_class_ref.name == of_class for claim in waiting)

    # -- one token ----------------------------------------------------------------------------------------------------------

    def _purpose(self, claim: NodeClaim, node_class: EC2NodeClass) -> TokenPurpose:
        pool = claim.metadata.labels.get(labels.NODE_POOL, "")
        name = node_class.metadata.name
        if self._settings.token_delivery is not TokenDelivery.WINDOW:
            return TokenPurpose(self._cluster_name, pool, name, claim)
        return TokenPurpose(self._cluster_name, pool, name, window=self._window())

    def _window(self, later: timedelta = timedelta()) -> str:
        """The beginning of the window at this time, or some time later, in seconds since 1970."""
        seconds = int(WINDOW.total_seconds())
        return str(int((self._clock.now() + later).timestamp()) // seconds * seconds)

    async def _reusable_token(self, purpose: TokenPurpose) -> BootstrapToken | None:
        """The token there is for a purpose; those that are no longer good are deleted (AWS-912)."""
        reusable: BootstrapToken | None = None
        for secret in await self._list(purpose.selector):
            token = stored_token(secret)
            is_good = purpose.claim is None or _is_holder(secret, purpose.claim)
            if reusable is None and token is not None and is_good and self._validity(secret) > MIN_VALIDITY:
                reusable = token
            else:
                await self._delete(secret)
        return reusable

    def _validity(self, secret: Secret) -> timedelta:
        expiration = token_expiration(secret)
        return expiration - self._clock.now() if expiration is not None else timedelta()

    async def _create(self, purpose: TokenPurpose) -> BootstrapToken:
        """A new token; another one where its name is taken (AWS-909). Raises ``KubeError``."""
        ttl = self._settings.token_ttl if purpose.claim is not None else WINDOW_TTL
        for attempt in range(1, _MAX_TRIES + 1):
            token = new_token(self._choice)
            secret = token_secret(token, purpose, self._clock.now() + ttl, self._settings.token_groups)
            try:
                await self._kube.create(SECRET, secret)
            except AlreadyExists:
                if attempt == _MAX_TRIES:
                    raise
                continue
            _log.info("created bootstrap token", Secret={"name": token.secret_name}, purpose=purpose.description)
            return token
        raise AssertionError

    async def _wait_for_signature(self, token: BootstrapToken) -> None:
        """Wait until instances can verify the cluster by this token (AWS-910)."""
        deadline = asyncio.get_running_loop().time() + _SIGNATURE_WAIT_SECONDS
        while not await self._is_signed(token):
            if asyncio.get_running_loop().time() >= deadline:
                _log.warning(
                    "the cluster-info ConfigMap has no signature for a new bootstrap token; a fast instance may not join",
                    Secret={"name": token.secret_name},
                )
                return
            await asyncio.sleep(_SIGNATURE_POLL_SECONDS)

    async def _is_signed(self, token: BootstrapToken) -> bool:
        try:
            info = await self._kube.get(CONFIG_MAP, CLUSTER_INFO, PUBLIC_NAMESPACE)
        except KubeError:
            return False
        return f"jws-kubeconfig-{token.token_id}" in info.data

    # -- Secrets ------------------------------------------------------------------------------------------------------------

    async def _list(self, selector: str) -> tuple[Secret, ...]:
        secrets_ = (await self._kube.list(SECRET, TOKEN_NAMESPACE, label_selector=selector)).items
        return tuple(secret for secret in secrets_ if secret.type == SECRET_TYPE)

    async def _delete(self, secret: Secret) -> None:
        meta = secret.metadata
        try:
            await self._kube.delete(SECRET, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            return
        _log.info("deleted bootstrap token", Secret={"name": meta.name})


def _is_holder(secret: Secret, claim: NodeClaim) -> bool:
    """Whether the token is this claim's, not that of an earlier claim of the same name."""
    return any(owner.uid == claim.metadata.uid for owner in secret.metadata.owner_references)


_APPROVAL = "system:certificates.k8s.io:certificatesigningrequests"
_FOR_BOOTSTRAPPERS = {
    "kubeadm:kubelet-bootstrap": "system:node-bootstrapper",
    "kubeadm:node-autoapprove-bootstrap": f"{_APPROVAL}:nodeclient",
}
_FOR_NODES = {"kubeadm:node-autoapprove-certificate-rotation": f"{_APPROVAL}:selfnodeclient"}
_NODES_GROUP = "system:nodes"
_FORBIDDEN = (
    "the controller may not read {what}; install the roles of kubeadm mode (chart value settings.bootstrapMode)"
)


def missing_bindings(bindings: Iterable[ClusterRoleBinding], token_groups: Iterable[str]) -> Iterator[str]:
    """The bindings that no other one of the same role and group stands for, under the names kubeadm gives them."""
    granted = {
        (binding.role_ref.name, subject.name)
        for binding in bindings
        for subject in binding.subjects
        if binding.role_ref.kind == "ClusterRole" and subject.kind == "Group"
    }
    wanted = [(name, role, group) for name, role in _FOR_BOOTSTRAPPERS.items() for group in token_groups]
    wanted += [(name, role, _NODES_GROUP) for name, role in _FOR_NODES.items()]
    for name, role, group in wanted:
        if (role, group) not in granted:
            yield f"ClusterRoleBinding {name} (ClusterRole {role} for group {group})"


async def missing_prerequisites(kube: Reader, token_groups: Iterable[str]) -> tuple[str, ...]:
    """What is missing or cannot be read, one phrase each. Raises ``KubeError``."""
    return (*await _bindings(kube, token_groups), *await _cluster_info(kube))


async def _bindings(kube: Reader, token_groups: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(missing_bindings((await kube.list(CLUSTER_ROLE_BINDING)).items, token_groups))
    except Forbidden:
        return (_FORBIDDEN.format(what="ClusterRoleBindings"),)


async def _cluster_info(kube: Reader) -> tuple[str, ...]:
    shown = f"ConfigMap {PUBLIC_NAMESPACE}/{CLUSTER_INFO}"
    try:
        info = await kube.get(CONFIG_MAP, CLUSTER_INFO, PUBLIC_NAMESPACE)
    except NotFound:
        return (shown,)
    except Forbidden:
        return (_FORBIDDEN.format(what=shown),)
    return () if "kubeconfig" in info.data else (f"key kubeconfig in {shown}",)
