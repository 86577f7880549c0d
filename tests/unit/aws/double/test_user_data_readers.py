"""User data as the images read it, valid and invalid."""

from __future__ import annotations

import base64

import pytest

from karpenter.api.scheduling_constraints import Taint
from support.aws.bootstrap import BootstrapError, read

CA = base64.b64encode(b"certificate").decode()
AL2023 = "amazon-eks-node-al2023-x86_64-standard-1.35-v20260801"
AL2 = "amazon-eks-node-1.35-v20260801"
BOTTLEROCKET = "bottlerocket-aws-k8s-1.35-x86_64-v1.55.0-4a1b2c3d"
WINDOWS = "Windows_Server-2022-English-Core-EKS_Optimized-1.35-2026.08.01"
UNREGISTERED = Taint(key="karpenter.sh/unregistered", effect="NoExecute")

CONFIG = f"""\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: test
    apiServerEndpoint: https://api.example
    certificateAuthority: {CA}
    cidr: 10.100.0.0/16
  kubelet:
    config:
      maxPods: 29
      kubeReserved: {{cpu: 100m}}
      registerWithTaints:
      - {{key: karpenter.sh/unregistered, effect: NoExecute}}
    flags:
    - --node-labels="team=a,karpenter.sh/nodepool=default"
"""
SCRIPT = f"""\
#!/bin/bash -xe
exec > >(tee /var/log/user-data.log) 2>&1
/etc/eks/bootstrap.sh 'test' --apiserver-endpoint 'https://api.example' --b64-cluster-ca '{CA}' \\
--dns-cluster-ip '10.100.0.10' \\
--use-max-pods false \\
--kubelet-extra-args '--node-labels="team=a" --register-with-taints="karpenter.sh/unregistered=:NoExecute" --max-pods=29'
"""
TOML = f"""\
[settings.kubernetes]
cluster-name = "test"
api-server = "https://api.example"
cluster-certificate = "{CA}"
max-pods = 29
[settings.kubernetes.node-labels]
team = "a"
[settings.kubernetes.node-taints]
"karpenter.sh/unregistered" = [":NoExecute"]
"""
POWERSHELL = f"""\
<powershell>
[string]$EKSBootstrapScriptFile = "$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1"
& $EKSBootstrapScriptFile -EKSClusterName 'test' -APIServerEndpoint 'https://api.example' -Base64ClusterCA '{CA}' \
-KubeletExtraArgs '--node-labels="team=a" --register-with-taints="karpenter.sh/unregistered=:NoExecute" --max-pods=29'
</powershell>
"""


def mime(*parts: tuple[str, str]) -> str:
    """MIME parts with their content types, as AMI families expect them."""
    head = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n'
    body = "".join(f"--//\nContent-Type: {kind}\n\n{text}\n" for kind, text in parts)
    return f"{head}{body}--//--\n"


NODE_CONFIG = "application/node.eks.aws"
SHELL = 'text/x-shellscript; charset="us-ascii"'
SOUND = {
    AL2023: mime((NODE_CONFIG, CONFIG)),
    AL2: mime((SHELL, SCRIPT)),
    BOTTLEROCKET: TOML,
    WINDOWS: POWERSHELL,
}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("image", SOUND, ids=["AWS-245", "AWS-240", "AWS-250", "AWS-258"])
def test_every_family_reads_its_own_format(image: str) -> None:
    joining = read(encoded(SOUND[image]), image)
    assert (joining.cluster, joining.endpoint, joining.certificate) == ("test", "https://api.example", CA)
    assert joining.labels["team"] == "a"
    assert joining.taints == (UNREGISTERED,)
    assert joining.max_pods == 29


@pytest.mark.parametrize("image", SOUND, ids=["AL2023", "AL2", "Bottlerocket", "Windows"])
def test_a_custom_image_reads_any_format(image: str) -> None:
    assert read(encoded(SOUND[image]), "mine") == read(encoded(SOUND[image]), image)


def test_later_node_configs_override_earlier_ones_and_kubelet_flags_add_up() -> None:
    """AWS-245."""
    custom = (
        "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster: {name: other}\n"
        "  kubelet: {config: {maxPods: 5}, flags: [--v=4]}\n"
    )
    joining = read(encoded(mime((NODE_CONFIG, custom), (NODE_CONFIG, CONFIG))), AL2023)
    assert (joining.cluster, joining.max_pods) == ("test", 29)
    assert joining.labels == {"team": "a", "karpenter.sh/nodepool": "default"}
    assert joining.reserved == {"cpu": "100m"}


@pytest.mark.parametrize(
    ("image", "text", "words"),
    [
        (AL2023, "kind: NodeConfig", "no config in user data"),
        (AL2023, mime((NODE_CONFIG, "a: [")), "nodeadm:"),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace("    cidr: 10.100.0.0/16\n", ""))), "cidr is missing"),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace("v1alpha1", "v9"))), "unknown apiVersion"),
        (
            AL2023,
            mime((NODE_CONFIG, CONFIG.replace("team=a", "node-restriction.kubernetes.io/z=a"))),
            "labels specified",
        ),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace("team=a", "foo.k8s.io/b=c"))), "labels specified"),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace("--node-labels", "--node-label"))), "unknown argument"),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace("effect: NoExecute", "effect: Never"))), "invalid taint"),
        (AL2023, mime((NODE_CONFIG, CONFIG.replace(CA, "not base64!"))), "not base64"),
        (AL2, mime((SHELL, "#!/bin/bash\necho hello")), "no shell part calls"),
        (AL2, mime((SHELL, SCRIPT.replace("#!/bin/bash -xe\n", ""))), "without an interpreter line"),
        (AL2, mime((SHELL, SCRIPT.replace("'test'", ""))), "CLUSTER_NAME"),
        (AL2, mime((SHELL, SCRIPT.replace("--max-pods=29'", "--max-pods=29"))), "not a command line"),
        (AL2, mime((SHELL, SCRIPT.replace("--dns-cluster-ip", "--dns"))), "unknown argument --dns"),
        (BOTTLEROCKET, "not toml {", "early-boot-config"),
        (BOTTLEROCKET, TOML.replace("api-server", "api"), "api-server is missing"),
        (WINDOWS, "Start-EKSBootstrap.ps1", "no <powershell>"),
        (WINDOWS, "<powershell>Write-Output 'hello'</powershell>", "nothing calls"),
        ("mine", "#!/bin/bash\necho hello", "nothing in the user data"),
    ],
)
def test_an_instance_with_invalid_user_data_does_not_join(image: str, text: str, words: str) -> None:
    with pytest.raises(BootstrapError, match=words):
        read(encoded(text), image)


def test_an_instance_whose_user_data_is_not_base64_does_not_join() -> None:
    with pytest.raises(BootstrapError, match="not base64"):
        read("???", AL2023)
