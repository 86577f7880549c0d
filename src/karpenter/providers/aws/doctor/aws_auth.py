"""The ConfigMap ``kube-system/aws-auth``, by which clusters without access entries know the roles of their nodes (AWS-726)."""

from __future__ import annotations

import json
import shlex

import yaml

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
