"""The manifests of `deploy/`, for those who install without Helm: what Helm makes of the chart.

``python -m helm.manifests`` (`make charts`) writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from helm.charts import NAMESPACE, ROOT, helm

_HEAD = "# Written by `make charts`; what Helm renders from charts/karpenter in namespace {namespace} with{flags}\n"
#: Values of each folder. `NAME` is a placeholder, with which the controller does not start.
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "aws": ("settings.clusterName=NAME", "settings.interruptionQueue=NAME", "settings.eksControlPlane=true"),
    "kubeadm": (
        "settings.clusterName=NAME",
        "settings.clusterEndpoint=https://HOST:6443",
        "settings.bootstrapMode=kubeadm",
        "settings.approveKubeletServing=true",
    ),
    "simulated": ("provider=simulated",),
}


def rendered() -> dict[Path, str]:
    """Every file of `deploy/` that comes from the chart, with its text."""
    return {ROOT / "deploy" / folder / "karpenter.yaml": _render(values) for folder, values in FOLDERS.items()}


def _render(values: tuple[str, ...]) -> str:
    flags = [word for value in values for word in ("--set", value)]
    text = helm("template", "karpenter", "charts/karpenter", "--namespace", NAMESPACE, *flags)
    shown = "".join(f" --set {value}" for value in values)
    lines = [line.rstrip() for line in text.splitlines()]
    return _HEAD.format(namespace=NAMESPACE, flags=shown) + "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    for file, text in rendered().items():
        file.write_text(text, encoding="utf-8")
