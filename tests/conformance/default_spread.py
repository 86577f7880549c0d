"""What the specs about the scheduler's default topology spread need: kube-scheduler and the controller with the same defaults.

The specs look for a kube-scheduler whose arguments name the file with the defaults, change a setting of the controller's
Deployment and wait until a pod of it leads. Here both have the defaults from the start, on a control plane of their own. Two
pods stand for the processes beside the cluster; no scheduler binds them, since pods of a node that does not exist are collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from controlplane.harness import Json

#: The container of the specs in the regression suite.
CONTAINER = "DefaultTopologySpreadConstraints"
_FILE = "kube-scheduler-config.yaml"
_MOUNTED_FILE = f"/etc/kubernetes/karpenter-scheduler-config/{_FILE}"
_NAMESPACE = "kube-system"
_CONTROLLER_POD = "karpenter-0"


def scheduler_configuration(suite: Path) -> Json:
    """The KubeSchedulerConfiguration that the suite in this folder embeds: the usual profile and one with default constraints."""
    configuration: Json = yaml.safe_load((suite / "testdata" / _FILE).read_text())
    return configuration


def controller_environment(configuration: Json) -> Mapping[str, str]:
    """The controller's setting that names the same constraints. Raises ``ValueError`` where no profile has any."""
    profiles: list[Json] = configuration["profiles"]  # type: ignore[assignment]
    plugins: list[Json] = [plugin for profile in profiles for plugin in profile.get("pluginConfig", [])]  # type: ignore[attr-defined]
    for plugin in plugins:
        arguments: Json = plugin["args"]  # type: ignore[assignment]
        if constraints := arguments.get("defaultConstraints"):
            return {"SCHEDULER_CONFIG": yaml.safe_dump({"podTopologySpread": {"defaultConstraints": constraints}})}
    raise ValueError(f"no profile of {_FILE} has default constraints")


def stand_ins() -> tuple[Json, ...]:
    """Pods of kube-scheduler and of the controller, and the lease that the latter holds."""
    lease: Json = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "karpenter-leader-election", "namespace": _NAMESPACE},
        "spec": {"holderIdentity": f"{_CONTROLLER_POD}_0"},
    }
    return (
        _pod("kube-scheduler-0", {"component": "kube-scheduler"}, ["kube-scheduler", f"--config={_MOUNTED_FILE}"]),
        _pod(_CONTROLLER_POD, {"app.kubernetes.io/instance": "karpenter"}, ["karpenter", "run"]),
        lease,
    )


def _pod(name: str, labels: Mapping[str, str], command: list[str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": dict(labels)},
        "spec": {
            "schedulerName": "none",
            "containers": [{"name": "process", "image": name, "command": command}],
        },
    }
