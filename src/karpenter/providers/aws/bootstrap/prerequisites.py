"""What a cluster must have so that nodes can join it with a token (AWS-936).

``kubeadm init`` makes all of it. The names of the bindings do not matter, their roles and groups do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from karpenter.api.kinds import CONFIG_MAP
from karpenter.kube.errors import Forbidden, NotFound
from karpenter.kube.protocol import Reader
from karpenter.providers.aws.bootstrap.bootstrap_objects import CLUSTER_ROLE_BINDING, ClusterRoleBinding
from karpenter.providers.aws.bootstrap.token_issuer import CLUSTER_INFO, PUBLIC_NAMESPACE

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
