"""Bootstrap tokens and the Secrets that hold them (AWS-905 to AWS-907). Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.control_plane import Secret
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.model import labels
from karpenter.providers.aws import aws_labels

TOKEN_NAMESPACE = "kube-system"
SECRET_TYPE = "bootstrap.kubernetes.io/token"
MANAGED_BY_LABEL, MANAGED_BY = "app.kubernetes.io/managed-by", "karpenter"
NODE_CLAIM_LABEL = "karpenter.sh/nodeclaim"
#: On the Secret of a token that the NodeClaims of one class and one period share.
WINDOW_LABEL = f"{labels.AWS_GROUP}/bootstrap-window"
SECRET_NAME_PREFIX = "bootstrap-token-"

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH, _SECRET_LENGTH = 6, 16
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


@dataclass(frozen=True)
class BootstrapToken:
    """A token. Its secret part is in no text but ``value``, so that no log line shows it by accident (AWS-913)."""

    token_id: str
    secret: str = field(repr=False)

    @property
    def value(self) -> str:
        """``ID.SECRET``, as kubeadm takes it."""
        return f"{self.token_id}.{self.secret}"

    @property
    def secret_name(self) -> str:
        """The name of the Secret that makes the token valid."""
        return SECRET_NAME_PREFIX + self.token_id


@dataclass(frozen=True)
class TokenPurpose:
    """What a token is for: a NodeClaim, or a node class in a period if ``window`` is not empty."""

    cluster: str
    pool: str
    node_class: str
    claim: NodeClaim | None = None
    window: str = ""

    @property
    def selector(self) -> str:
        """A label selector for the Secrets of this purpose."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the Secret (AWS-907)."""
        shared = {MANAGED_BY_LABEL: MANAGED_BY}
        if self.claim is None:
            return {**shared, aws_labels.NODE_CLASS: self.node_class, WINDOW_LABEL: self.window}
        own = {NODE_CLAIM_LABEL: self.claim.metadata.name}
        return {**shared, **own, **({labels.NODE_POOL: self.pool} if self.pool else {})}

    @property
    def description(self) -> str:
        """What ``kubeadm token list`` shows."""
        who = f"NodeClaim {self.claim.metadata.name}" if self.claim else f"EC2NodeClass {self.node_class}"
        return f"Karpenter, cluster {self.cluster}, {who}"


def new_token(choice: Callable[[str], str]) -> BootstrapToken:
    """A random token. ``choice`` picks a character and must be cryptographically random (``secrets.choice``) (AWS-905)."""
    return BootstrapToken(*("".join(choice(_ALPHABET) for _ in range(size)) for size in (_ID_LENGTH, _SECRET_LENGTH)))


def token_secret(token: BootstrapToken, purpose: TokenPurpose, expiration: datetime, groups: tuple[str, ...]) -> Secret:
    """The Secret that makes a token valid until ``expiration`` (AWS-906, AWS-907)."""
    data = {
        "token-id": token.token_id,
        "token-secret": token.secret,
        "description": purpose.description,
        "expiration": expiration.astimezone(UTC).strftime(_TIME_FORMAT),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": ",".join(groups),
    }
    return Secret(
        metadata=ObjectMeta(
            name=token.secret_name,
            namespace=TOKEN_NAMESPACE,
            labels=purpose.labels,
            owner_references=_owners(purpose.claim),
        ),
        type=SECRET_TYPE,
        data={key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    )


def _owners(claim: NodeClaim | None) -> tuple[OwnerReference, ...]:
    if claim is None:
        return ()
    meta = claim.metadata
    return (OwnerReference(api_version="karpenter.sh/v1", kind="NodeClaim", name=meta.name, uid=meta.uid),)


def stored_token(secret: Secret) -> BootstrapToken | None:
    """The token a Secret holds; None for a Secret that holds none."""
    token = BootstrapToken(_text(secret, "token-id"), _text(secret, "token-secret"))
    is_named_after = secret.metadata.name == token.secret_name
    return token if is_named_after and _TOKEN.fullmatch(token.value) else None


def token_expiration(secret: Secret) -> datetime | None:
    """When a Secret's token expires; None where it does not say."""
    try:
        return datetime.strptime(_text(secret, "expiration"), _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def _text(secret: Secret, key: str) -> str:
    try:
        return base64.b64decode(secret.data.get(key, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


#: Names a Node can be given, each with its path in the instance metadata.
NODE_NAME_SOURCES = {"instance-id": "instance-id", "private-dns": "local-hostname"}


@dataclass(frozen=True)
class JoinParameters:
    """What the user data of one NodeClaim says beside what its class, its type and the cluster say.

    ``claim`` is empty where the text does not name it, so that equal claims have equal user data. ``token`` is None where
    instances join by other means; ``token_parameter`` names the SSM parameter that holds it instead of the user data.
    ``is_single_use``: no other NodeClaim can have the same user data.
    """

    claim: str = ""
    pool: str = ""
    node_class: str = ""
    token: BootstrapToken | None = None
    token_parameter: str = ""
    node_name_source: str = ""
    is_compressed: bool = False
    is_single_use: bool = False
