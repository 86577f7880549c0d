"""The provider's user data of every AMI family, read by the bootstrap readers of the double."""

from __future__ import annotations

import base64

import pytest

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.userdata import BootstrapOptions, render_user_data
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts, resolve_kubelet_settings
from support.aws.bootstrap import BootstrapConfig, read

CA = base64.b64encode(b"certificate").decode()
CLUSTER = AwsClusterInfo("prod", "us-west-2", "https://api.example", CA, "1.35", "10.100.0.10", "10.100.0.0/16")
FACTS = KubeletTypeFacts("m5.xlarge", 4, 16384, 4, 15, 58)
IMAGES = {
    "AL2": "amazon-eks-node-1.35-v20260801",
    "AL2023": "amazon-eks-node-al2023-x86_64-standard-1.35-v20260801",
    "Bottlerocket": "bottlerocket-aws-k8s-1.35-x86_64-v1.55.0-4a1b2c3d",
    "Windows2022": "Windows_Server-2022-English-Core-EKS_Optimized-1.35-2026.08.01",
}
UNREGISTERED = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
GPU = Taint(key="dedicated", value="gpu", effect="NoSchedule")
LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "karpenter.sh/nodepool": "default",
    "karpenter.k8s.aws/ec2nodeclass": "default",
    "team": "a",
    "kubernetes.io/arch": "amd64",
    "node-restriction.kubernetes.io/zone": "b",
    "foo.k8s.io/bar": "c",
}
SETTINGS: dict[str, object] = {
    "kubeReserved": {"cpu": "200m", "memory": "512Mi"},
    "systemReserved": {"cpu": "100m"},
    "evictionHard": {"memory.available": "5%"},
    "evictionSoft": {"memory.available": "500Mi"},
    "evictionSoftGracePeriod": {"memory.available": "1m30s"},
    "evictionMaxPodGracePeriod": 60,
    "imageGCHighThresholdPercent": 85,
    "imageGCLowThresholdPercent": 80,
    "cpuCFSQuota": False,
}
IP6 = AwsClusterInfo("prod", "us-west-2", "https://api.example", CA, "1.35", "fd00::a", "fd00::/108")


def _read(family: str, cluster: AwsClusterInfo = CLUSTER, custom: str = "", **settings: object) -> BootstrapConfig:
    data = render_user_data(
        BootstrapOptions(
            cluster=cluster,
            family=family,
            labels=LABELS,
            taints=(GPU,),
            kubelet_spec=settings,
            kubelet_settings=resolve_kubelet_settings(settings, FACTS, expressions=True),
            max_pods=58,
            custom_user_data=custom,
            raid0=True,
            image_version="v1.55.0",
        )
    )
    return read(base64.b64encode(data).decode(), IMAGES[family])


@pytest.mark.parametrize("family", IMAGES)
@pytest.mark.parametrize("cluster", [CLUSTER, IP6], ids=["ipv4", "ipv6"])
def test_user_data_has_cluster_labels_and_taints(family: str, cluster: AwsClusterInfo) -> None:
    """AWS-220, AWS-221, AWS-T225, AWS-T235."""
    joining = _read(family, cluster)
    assert (joining.cluster, joining.endpoint, joining.certificate) == ("prod", "https://api.example", CA)
    assert joining.labels == {
        "karpenter.sh/capacity-type": "spot",
        "karpenter.sh/nodepool": "default",
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "karpenter.sh/do-not-sync-taints": "true",
        "team": "a",
    }
    assert joining.taints == (GPU, UNREGISTERED)
    assert joining.max_pods == 58


@pytest.mark.parametrize("family", IMAGES)
def test_user_data_has_the_kubelet_settings(family: str) -> None:
    """AWS-223, AWS-224, AWS-T236: all fields are written in the format of each family."""
    joining = _read(family, **SETTINGS, maxPods=10)
    assert joining.max_pods == 10
    assert joining.reserved == {"cpu": "200m", "memory": "512Mi"}


@pytest.mark.parametrize(
    ("family", "custom"),
    [
        ("AL2", "#!/bin/bash\necho first\n"),
        ("AL2023", "#!/bin/bash\necho first\n"),
        ("AL2023", "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster: {name: mine}\n"),
        ("Bottlerocket", '[settings]\nmotd = "hello"\n[settings.kubernetes]\ncluster-name = "mine"\n'),
        ("Windows2022", "Write-Output 'first'"),
    ],
)
def test_custom_user_data_does_not_change_the_cluster(family: str, custom: str) -> None:
    """AWS-241, AWS-245, AWS-252, AWS-258."""
    assert _read(family, custom=custom) == _read(family)
