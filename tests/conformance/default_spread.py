"""What the specs about the scheduler's default topology spread need: kube-scheduler and the controller with the same defaults.

The specs look for a kube-scheduler whose arguments name the file with the defaults, change a setting of the controller's
Deployment and wait until a pod of it leads. Here both have the defaults from the start, on a control plane of their own. Two
pods stand for the processes beside the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from conformance import stand_ins
from controlplane.harness import Json

#: The container of the specs in the regression suite.
CONTAINER = "DefaultTopologySpreadConstraints"
_FILE = "kube-scheduler-config.yaml"
_MOUNTED_FILE = f"/etc/kubernetes/karpenter-scheduler-config/{_FILE}"


def scheduler_configuration(suite: Path) -> Json:
    """The KubeSchedulerConfiguration that the suite in this folder embeds: the usual profile and one with default constraints."""
    configuration: Json = yaml.safe_load((suite / "testdata" / _FILE).read_text())
    return configuration


def controller_environment(configuration: Json) -> Mapping[str, str]:
    """The controller's setting that names the same constraints. Raises ``ValueError`` where no profile has any."""
    profiles: list[Json] = configuration["profiles"]
    plugins: list[Json] = [plugin for profile in profiles for plugin in profile.get("pluginConfig", [])]
    for plugin in plugins:
        arguments: Json = plugin["args"]
        if constraints := arguments.get("defaultConstraints"):
            return {"SCHEDULER_CONFIG": yaml.safe_dump({"podTopologySpread": {"defaultConstraints": constraints}})}
    raise ValueError(f"no profile of {_FILE} has default constraints")


def objects() -> tuple[Json, ...]:
    """Pods of kube-scheduler and of the controller, and the lease that the latter holds."""
    scheduler = f"kube-scheduler --config={_MOUNTED_FILE}"
    return (
        stand_ins.pod("kube-scheduler-0", scheduler, {"component": "kube-scheduler"}),
        stand_ins.pod(stand_ins.CONTROLLER_POD, labels={"app.kubernetes.io/instance": "karpenter"}),
        stand_ins.LEASE,
    )
