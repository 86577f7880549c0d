"""The subject of ``karpenter explain``: ``pod NAME``, ``pod/NAME``, ``node/NAME`` or a workload such as ``deployment/NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from karpenter.cli.terminal import WrongInput
from karpenter.model.pods import controller_of, is_finished

if TYPE_CHECKING:
    from karpenter.api.core import Pod

#: Kinds by what kubectl takes for them.
_KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), "Pod"),
    **dict.fromkeys(("node", "nodes", "no", "nodeclaim", "nodeclaims"), "Node"),
    **dict.fromkeys(("deployment", "deployments", "deploy"), "Deployment"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "StatefulSet"),
    **dict.fromkeys(("daemonset", "daemonsets", "ds"), "DaemonSet"),
    **dict.fromkeys(("replicaset", "replicasets", "rs"), "ReplicaSet"),
    **dict.fromkeys(("job", "jobs"), "Job"),
    **dict.fromkeys(("cronjob", "cronjobs", "cj"), "CronJob"),
}
#: Workloads whose pods belong to an object of another kind, named after the workload and a suffix.
_OWNED_THROUGH = {"Deployment": "ReplicaSet", "CronJob": "Job"}


@dataclass(frozen=True)
class Subject:
    """The kind, ``Pod``, ``Node`` or that of a workload, the name, and the namespace where it was written before the name."""

    kind: str
    name: str
    namespace: str = ""


def parse_subject(words: Sequence[str]) -> Subject:
    """The subject that one word with a slash, or two words, name. Raises ``WrongInput``."""
    kind, separator, name = words[0].partition("/") if len(words) == 1 else (words[0], "/", words[1])
    if len(words) > 2 or not separator or not name:
        raise WrongInput(f"{' '.join(words)!r} names nothing: write pod NAME or pod/NAME")
    if kind.lower() not in _KINDS:
        raise WrongInput(f"{kind!r} cannot be explained: pods, nodes and workloads can")
    namespace, _, own_name = name.rpartition("/")
    subject = Subject(_KINDS[kind.lower()], own_name, namespace)
    if "/" in namespace:
        raise WrongInput(f"{name!r} has too many slashes: write NAME or NAMESPACE/NAME")
    if namespace and subject.kind == "Node":
        raise WrongInput(f"{name!r}: nodes have no namespace, write node {own_name}")
    return subject


def pods_of_workload(pods: Sequence[Pod], namespace: str, workload: Subject) -> list[Pod]:
    """The pods that a workload owns: those without a node first, those that have finished last, then by name."""
    owned = [pod for pod in pods if pod.metadata.namespace == namespace and _is_owned(pod, workload)]
    return sorted(owned, key=lambda pod: (is_finished(pod), bool(pod.spec.node_name), pod.metadata.name))


def namespaces_of_workload(pods: Sequence[Pod], workload: Subject) -> list[str]:
    """The namespaces that have pods of a workload of this kind and name, sorted."""
    return sorted({pod.metadata.namespace for pod in pods if _is_owned(pod, workload)})


def _is_owned(pod: Pod, workload: Subject) -> bool:
    owner = controller_of(pod.metadata)
    if owner is None:
        return False
    between = _OWNED_THROUGH.get(workload.kind)
    if between is None:
        return (owner.kind, owner.name) == (workload.kind, workload.name)
    return owner.kind == between and owner.name.rpartition("-")[0] == workload.name
