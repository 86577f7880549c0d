"""Settings of self-managed clusters, and the classes that they apply to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.model.setting_kinds import SettingError
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS
from karpenter.providers.aws.aws_settings import aws_settings_of
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings, TokenDelivery
from karpenter.settings import resolve_settings, risky_settings
from support import launch_environment
from support.launch_environment import replaced_annotations

_KUBEADM = {
    "KARPENTER_PROVIDER": "aws",
    "CLUSTER_NAME": "prod",
    "BOOTSTRAP_MODE": "kubeadm",
    "CLUSTER_ENDPOINT": "https://10.0.0.10:6443",
}


def test_mode_kubeadm_needs_an_endpoint_and_excludes_settings_of_eks() -> None:
    """AWS-T920, AWS-900."""
    wrong = {**_KUBEADM, "CLUSTER_ENDPOINT": "", "ENABLE_ZONAL_SHIFT": "true", "EKS_CONTROL_PLANE": "true"}
    with pytest.raises(SettingError) as refused:
        resolve_settings({}, wrong)
    for flag in ("--cluster-endpoint (CLUSTER_ENDPOINT)", "--enable-zonal-shift", "--eks-control-plane"):
        assert flag in str(refused.value)
    assert resolve_settings({}, {**wrong, "KARPENTER_PROVIDER": "simulated"}).bootstrap_mode is BootstrapMode.KUBEADM


def test_settings_reach_the_provider() -> None:
    """AWS-900 to AWS-908."""
    flags = {"bootstrap_token_ttl": "30m", "bootstrap_token_delivery": "window", "set_provider_id": "false"}
    settings = resolve_settings(
        flags, {**_KUBEADM, "BOOTSTRAP_TOKEN_GROUPS": "system:bootstrappers:a:b,system:bootstrappers:c"}
    )
    assert aws_settings_of(settings, settings.gates, settings.intervals).bootstrap == BootstrapSettings(
        mode=BootstrapMode.KUBEADM,
        token_ttl=timedelta(minutes=30),
        token_delivery=TokenDelivery.WINDOW,
        token_groups=("system:bootstrappers:a:b", "system:bootstrappers:c"),
        set_provider_id=False,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_mode", "kops"),
        ("bootstrap_token_ttl", "4m59s"),
        ("bootstrap_token_ttl", "25h"),
        ("bootstrap_token_delivery", "mail"),
        ("bootstrap_token_groups", "system:masters"),
        ("bootstrap_token_groups", "system:bootstrappers:a,"),
    ],
)
def test_invalid_values_stop_the_start(name: str, value: str) -> None:
    """AWS-906, AWS-908: token groups start with system:bootstrappers, and the TTL is at most a day."""
    with pytest.raises(SettingError, match=f"--{name.replace('_', '-')}='{value}' is not"):
        resolve_settings({name: value}, _KUBEADM)


_ANNOTATION = join_rules.BOOTSTRAP_ANNOTATION
_BY_DEFAULT = BootstrapSettings(mode=BootstrapMode.KUBEADM, default_custom=True)


@pytest.mark.parametrize(
    ("family", "annotations", "settings", "expected"),
    [
        pytest.param("Custom", {_ANNOTATION: "kubeadm"}, BootstrapSettings(), True, id="AWS-901"),
        pytest.param("Custom", {}, BootstrapSettings(), False, id="no annotation"),
        pytest.param("Custom", {}, _BY_DEFAULT, True, id="AWS-902: by default"),
        pytest.param("Custom", {}, BootstrapSettings(default_custom=True), False, id="the default is of mode kubeadm"),
        pytest.param("AL2023", {_ANNOTATION: "kubeadm"}, _BY_DEFAULT, False, id="AWS-T912: another family"),
    ],
)
def test_which_classes_join_with_kubeadm(
    family: str, annotations: dict[str, str], settings: BootstrapSettings, expected: bool
) -> None:
    """AWS-901, AWS-902."""
    node_class = replaced_annotations(launch_environment.node_class({"ami_family": family}), annotations)
    assert join_rules.joins_with_kubeadm(node_class, settings) is expected
    assert join_rules.uses_kubeadm(settings, (node_class,)) is expected


@pytest.mark.parametrize(
    ("family", "annotations", "expected"),
    [
        pytest.param("Custom", {_ANNOTATION: "kubeadm"}, "", id="nothing is wrong"),
        pytest.param("AL2023", {}, "", id="no annotation"),
        pytest.param(
            "AL2023", {_ANNOTATION: "kubeadm"}, "needs amiFamily Custom, and this class has AL2023", id="AWS-T912"
        ),
        pytest.param("Custom", {_ANNOTATION: "kops"}, "'kops'; the only value is kubeadm", id="another way to join"),
        pytest.param("Custom", {join_rules.NODE_NAME_ANNOTATION: "ip"}, "instance-id or private-dns", id="AWS-925"),
        pytest.param("Custom", {join_rules.COMPRESS_ANNOTATION: "zstd"}, "the only value is gzip", id="AWS-924"),
    ],
)
def test_invalid_annotations_are_named(family: str, annotations: dict[str, str], expected: str) -> None:
    """AWS-901, AWS-T912."""
    node_class = replaced_annotations(launch_environment.node_class({"ami_family": family}), annotations)
    problem = join_rules.bootstrap_problem(node_class)
    assert expected in problem if expected else problem == ""


@pytest.mark.parametrize(("ttl", "count"), [("5m", 1), ("14m59s", 1), ("15m", 0), ("1h", 0)])
def test_a_token_that_expires_before_the_registration_timeout_logs_a_warning(ttl: str, count: int) -> None:
    """AWS-938: the token of an instance that boots slowly would be expired."""
    settings = resolve_settings({"provider": "aws", "cluster_name": "c", "bootstrap_token_ttl": ttl}, {})
    said = risky_settings(settings, DEFAULT_TIMEOUTS.registration)
    assert len(said) == count
    assert all("--bootstrap-token-ttl" in line and "15m" in line for line in said)
