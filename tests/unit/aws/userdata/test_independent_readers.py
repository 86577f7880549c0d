"""Our user data, read by the independent readers of the double, which accept what the images' boot programs accept."""

from __future__ import annotations

import base64

import pytest

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.userdata import BootstrapOptions, render_user_data
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts, resolve_kubelet_settings
from support.aws.bootstrap import read

CLUSTER = AwsClusterInfo(
    "prod", "eu-west-1", "https://api.example.com", "Q0E=", "1.33", dns_ip="10.0.0.10", service_cidr="10.0.0.0/16"
)
KUBELET: dict[str, object] = {
    "kubeReserved": {"cpu": "100m", "memory": "memory_mib / 20"},
    "systemReserved": {"cpu": "50m"},
    "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"},
    "evictionSoft": {"memory.available": "10%"},
    "evictionSoftGracePeriod": {"memory.available": "2m"},
    "evictionMaxPodGracePeriod": 60,
    "imageGCHighThresholdPercent": 80,
    "imageGCLowThresholdPercent": 70,
    "cpuCFSQuota": True,
}
SCRIPT = '#!/bin/bash\necho "it\'s mine"\n'
MIME = f"""MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="B"

--B
Content-Type: text/x-shellscript; charset="us-ascii"

{SCRIPT}
--B--
"""
TOML = '[settings.kubernetes.node-labels]\nmine = "yes"\n[settings.host-containers.admin]\nenabled = true\n'
NODE_CONFIG = (
    "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n    config:\n      maxPods: 5\n"
    "      podPidsLimit: 100\n"
)
IMAGES = {
    "AL2": "amazon-eks-node-1.32-v20250501",
    "AL2023": "amazon-eks-node-al2023-x86_64-standard-1.33-v20250501",
    "Bottlerocket": "bottlerocket-aws-k8s-1.33-x86_64-v1.46.0",
    "Windows2022": "Windows_Server-2022-English-Core-EKS_Optimized-1.33",
}


@pytest.mark.parametrize("kubelet", [{}, KUBELET], ids=["no settings", "all settings"])
@pytest.mark.parametrize(
    ("family", "custom"),
    [
        ("AL2", ""),
        ("AL2", SCRIPT),
        ("AL2", MIME),
        ("AL2023", ""),
        ("AL2023", SCRIPT),
        ("AL2023", MIME),
        ("AL2023", NODE_CONFIG),
        ("Bottlerocket", ""),
        ("Bottlerocket", TOML),
        ("Windows2022", ""),
        ("Windows2022", 'Write-Host "mine"'),
    ],
)
def test_an_instance_joins_with_the_configured_labels_taints_and_max_pods(
    family: str, custom: str, kubelet: dict[str, object]
) -> None:
    """AWS-220 to AWS-258"""
    facts = KubeletTypeFacts("m5.xlarge", 4, 16384, 4, 15, 58)
    given = BootstrapOptions(
        cluster=CLUSTER,
        family=family,
        labels={"karpenter.sh/capacity-type": "spot", "team": "a", "kubernetes.io/x": "y"},
        taints=(Taint(key="dedicated", value="gpu", effect="NoSchedule"), Taint(key="cni", effect="NoExecute")),
        kubelet_spec=kubelet,
        kubelet_settings=resolve_kubelet_settings(kubelet, facts, expressions=True),
        max_pods=58,
        custom_user_data=custom,
    )
    joining = read(base64.b64encode(render_user_data(given)).decode(), IMAGES[family])
    own = {"mine": "yes"} if custom == TOML else {}
    assert joining.cluster == "prod"
    assert joining.endpoint == "https://api.example.com"
    assert joining.certificate == "Q0E="
    assert joining.labels == {
        **own,
        "karpenter.sh/capacity-type": "spot",
        "karpenter.sh/do-not-sync-taints": "true",
        "team": "a",
    }
    assert set(joining.taints) == {
        Taint(key="dedicated", value="gpu", effect="NoSchedule"),
        Taint(key="cni", effect="NoExecute"),
        Taint(key="karpenter.sh/unregistered", effect="NoExecute"),
    }
    assert joining.max_pods == 58
    assert joining.reserved == ({"cpu": "100m", "memory": "832Mi"} if kubelet else {})
