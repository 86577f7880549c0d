"""The objects of a self-managed cluster that only this package reads and writes, as far as it does."""

from __future__ import annotations

import msgspec

from karpenter.api.core import NodeSpec
from karpenter.api.kinds import Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire


class RoleReference(Wire, frozen=True, kw_only=True):
    """The role of a binding."""

    kind: str = ""
    name: str = ""


class BindingSubject(Wire, frozen=True, kw_only=True):
    """The subject of a binding."""

    kind: str = ""
    name: str = ""


class ClusterRoleBinding(Wire, frozen=True, kw_only=True):
    """A ClusterRole and its subjects."""

    metadata: ObjectMeta = ObjectMeta()
    role_ref: RoleReference = RoleReference()
    subjects: tuple[BindingSubject, ...] = ()


class SigningRequestSpec(Wire, frozen=True, kw_only=True):
    """What is to be signed. ``request`` is base64 of PEM. The API server sets ``username`` and ``groups``: the requester's."""

    request: str = ""
    signer_name: str = ""
    usages: tuple[str, ...] = ()
    username: str = ""
    groups: tuple[str, ...] = ()


class SigningRequestStatus(Wire, frozen=True, kw_only=True):
    """The decision."""

    conditions: tuple[Condition, ...] = ()
    certificate: str = ""


class CertificateSigningRequest(Wire, frozen=True, kw_only=True):
    """A request for a certificate."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SigningRequestSpec = SigningRequestSpec()
    status: SigningRequestStatus = msgspec.field(default_factory=SigningRequestStatus)


class NodeAddress(Wire, frozen=True, kw_only=True):
    """An address of a Node, such as its ``InternalIP``."""

    type: str = ""
    address: str = ""


class NodeAddresses(Wire, frozen=True, kw_only=True):
    """A Node's status: its addresses."""

    addresses: tuple[NodeAddress, ...] = ()


class AddressedNode(Wire, frozen=True, kw_only=True):
    """A Node with its addresses. The informers leave them out: nothing else reads them."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeAddresses = NodeAddresses()


ADDRESSED_NODE = Kind("", "v1", "nodes", "Node", False, AddressedNode)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, ClusterRoleBinding
)
CERTIFICATE_SIGNING_REQUEST = Kind(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    CertificateSigningRequest,
)
