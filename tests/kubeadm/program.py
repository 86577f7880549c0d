"""The program kubeadm, built from the Go module in this folder (``gobuild``): parts without root and kubelet.

It is one release. ``KUBERNETES_RELEASE`` selects another module in ``releases/``, as for the control plane: each release
of kubeadm reads the join configuration of nodes of that release.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from controlplane.binaries import RELEASE_VARIABLE
from controlplane.gobuild import Commands, GoModule

FOLDER = Path(__file__).parent
_COMMANDS: Commands = {"kubeadm": ("build", "-trimpath", "-ldflags=-s -w", "k8s.io/kubernetes/cmd/kubeadm")}
_ANSWER_SECONDS = 120


class KubeadmFailed(Exception):
    """kubeadm failed; the message is its output."""


def binary() -> Path:
    """The path of kubeadm, which is built if necessary (minutes). Raises ``BuildFailed``."""
    return _module().binaries(_COMMANDS) / "kubeadm"


def is_ready() -> bool:
    """Whether ``binary`` returns without a build."""
    return _module().is_built(_COMMANDS)


def _module() -> GoModule:
    name = os.environ.get(RELEASE_VARIABLE, "")
    return GoModule("kubeadm", FOLDER / "releases" / f"v{name}" if name else FOLDER, (1, 26))


def validate(config: Path) -> None:
    """Decode a configuration strictly and validate it. Raises ``KubeadmFailed``."""
    _run("config", "validate", "--config", str(config))


def preflight(config: Path) -> None:
    """The first phase of a join: discovery of the cluster and reading of its configuration. Raises ``KubeadmFailed``.

    What it finds wrong with this machine (no kubelet, swap, ports) is ignored.
    """
    _run("join", "phase", "preflight", "--config", str(config), "--ignore-preflight-errors=all")


def _run(*arguments: str) -> None:
    command = [str(binary()), *arguments]
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
    )
    if done.returncode != 0:
        raise KubeadmFailed(done.stderr)
