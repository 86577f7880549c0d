"""The charts through Helm itself, built from the Go module beside this file (``gobuild``)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from controlplane.gobuild import Commands, GoModule
from controlplane.harness import Json
from support import yaml_text

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
MODULE = GoModule("Helm", Path(__file__).parent, (1, 26))
_COMMANDS: Commands = {"helm": ("build", "-trimpath", "-ldflags=-s -w", "helm.sh/helm/v4/cmd/helm")}
NAMESPACE = "kube-system"


class HelmFailed(Exception):
    """Helm ended with an error; the message is what it wrote."""


def binary() -> Path:
    """Helm, built first where that is necessary (minutes). Raises ``BuildFailed``."""
    return MODULE.binaries(_COMMANDS) / "helm"


def is_ready() -> bool:
    """Whether ``binary`` will answer at once."""
    return MODULE.is_built(_COMMANDS)


def helm(*arguments: str, kubeconfig: str = os.devnull) -> str:
    """What Helm prints, in a home of its own. Raises ``HelmFailed``."""
    with tempfile.TemporaryDirectory() as home:
        places = {f"HELM_{name}_HOME": f"{home}/{name}" for name in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **places, "HOME": home, "KUBECONFIG": kubeconfig}
        command = [str(binary()), *arguments]
        result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise HelmFailed(result.stderr)
    return result.stdout


def template(*arguments: str, release: str = "karpenter", namespace: str = NAMESPACE) -> list[Json]:
    """The objects `helm template` makes of the chart `karpenter`."""
    text = _rendered(release, namespace, *arguments)
    return [document for document in yaml_text.documents(text) if document]


@cache
def _rendered(release: str, namespace: str, *arguments: str) -> str:
    """Tests ask for the same values again, and the chart stays as it is."""
    return helm("template", release, "charts/karpenter", "--namespace", namespace, *arguments)


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    """The objects of a kind."""
    return [one for one in objects if one["kind"] == kind]


def the(objects: list[Json], kind: str) -> Json:
    """The only object of a kind."""
    (result,) = of_kind(objects, kind)
    return result
