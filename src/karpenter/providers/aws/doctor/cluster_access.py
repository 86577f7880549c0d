"""Whether nodes can join the cluster: bootstrap tokens of self-managed clusters (AWS-936), and the ConfigMap
``kube-system/aws-auth``, by which clusters without access entries know the roles of their nodes (AWS-726).
"""

from __future__ import annotations

import json
import shlex

import yaml

from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Reader
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.prerequisites import missing_prerequisites
from karpenter.providers.aws.doctor.doctor_types import DoctorCheck, DoctorFinding

_JOINING = DoctorCheck("joining")


async def check_joining(kube: Reader, settings: BootstrapSettings) -> list[DoctorFinding]:
    """What the cluster lacks so that nodes can join with a token; nothing outside mode kubeadm and with delivery external."""
    if not settings.is_kubeadm or settings.token_delivery is TokenDelivery.EXTERNAL:
        return []
    try:
        missing = await missing_prerequisites(kube, settings.token_groups)
    except KubeError as error:
        text = f"what nodes need to join cannot be read: {error}"
        return [_JOINING.warning(text, "nothing by itself", "run the command again with rights to read the cluster")]
    if not missing:
        return [_JOINING.ok("nodes can join with bootstrap tokens: cluster-info and the bindings of kubeadm are there")]
    text = f"nodes cannot join with bootstrap tokens; missing: {'; '.join(missing)}"
    fix = "run `kubeadm init phase bootstrap-token` on a node of the control plane"
    return [_JOINING.failure(text, "instances start, do not join, and are terminated", fix)]


NAMESPACE, NAME, FIELD = "kube-system", "aws-auth", "mapRoles"
_USERNAME = "system:node:{{EC2PrivateDNSName}}"
_GROUPS = ("system:bootstrappers", "system:nodes")


def command_to_add(map_roles: str | None, role_arn: str) -> str:
    """The kubectl line that lets the cluster know a node role; empty where ``mapRoles`` cannot be read.

    ``map_roles`` is its present text; None where there is no ConfigMap. The line makes the ConfigMap, or replaces ``mapRoles``
    by what it is with one entry more. Everything else of the ConfigMap stays.
    """
    entry = {"rolearn": role_arn, "username": _USERNAME, "groups": list(_GROUPS)}
    if map_roles is None:
        return (
            f"kubectl create configmap {NAME} -n {NAMESPACE} --from-literal={shlex.quote(f'{FIELD}={_text([entry])}')}"
        )
    try:
        present = yaml.safe_load(map_roles) or []
    except yaml.YAMLError:
        return ""
    if not isinstance(present, list):
        return ""
    patch = json.dumps({"data": {FIELD: _text([*present, entry])}})
    return f"kubectl patch configmap {NAME} -n {NAMESPACE} --type merge -p {shlex.quote(patch)}"


def _text(entries: list[object]) -> str:
    return yaml.safe_dump(entries, sort_keys=False)
