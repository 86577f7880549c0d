"""Image discovery of a class (AWS-085 to AWS-087, AWS-180 to AWS-195, AWS-200)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.api.ec2_node_class import AMISelectorTerm
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.nodeclass import ami_selection
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.userdata.ami_families import effective_ami_family
from support.fake_node_class_services import THROTTLED
from support.node_class_environment import NodeClassEnvironment

EKS = "/aws/service/eks/optimized-ami"


def names(alias: str, kubernetes: str) -> list[str]:
    return [
        alias_parameter.name
        for alias_parameter in ami_selection.alias_parameters(ami_selection.parse_alias(alias), kubernetes)
    ]


@pytest.mark.parametrize(
    ("alias", "kubernetes", "expected"),
    [
        pytest.param(
            "al2@v20240807",
            "1.29",
            f"{EKS}/1.29/amazon-linux-2/amazon-eks-node-1.29-v20240807/image_id",
            id="AWS-T182",
        ),
        pytest.param(
            "al2@v20240807",
            "1.29",
            f"{EKS}/1.29/amazon-linux-2-gpu/amazon-eks-gpu-node-1.29-v20240807/image_id",
            id="AWS-185",
        ),
        pytest.param("al2@latest", "1.30", f"{EKS}/1.30/amazon-linux-2-arm64/recommended/image_id", id="AWS-184"),
        pytest.param(
            "al2023@latest", "1.33", f"{EKS}/1.33/amazon-linux-2023/arm64/nvidia/recommended/image_id", id="AWS-186"
        ),
        pytest.param(
            "al2023@v20250101",
            "1.33",
            f"{EKS}/1.33/amazon-linux-2023/x86_64/neuron/amazon-eks-node-al2023-x86_64-neuron-1.33-v20250101/image_id",
            id="AWS-187",
        ),
        pytest.param(
            "bottlerocket@v1.20.0",
            "1.31",
            "/aws/service/bottlerocket/aws-k8s-1.31-nvidia/arm64/1.20.0/image_id",
            id="AWS-188",
        ),
        pytest.param(
            "windows2022@latest",
            "1.31",
            "/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.31/image_id",
            id="AWS-189",
        ),
    ],
)
def test_the_parameters_of_an_alias(alias: str, kubernetes: str, expected: str) -> None:
    assert expected in names(alias, kubernetes)


def test_a_bottlerocket_version_can_have_a_leading_v() -> None:
    """AWS-T183"""
    assert names("bottlerocket@v1.20.0", "1.31") == names("bottlerocket@1.20.0", "1.31")


def test_al2023_has_five_images_and_bottlerocket_four() -> None:
    """AWS-186, AWS-188"""
    assert len(names("al2023@latest", "1.33")) == 5
    assert len(names("bottlerocket@latest", "1.33")) == 4


@pytest.mark.parametrize(
    ("alias", "kubernetes", "supported"),
    [
        pytest.param("al2@latest", "1.32", True, id="al2-up-to-1.32"),
        pytest.param("al2@latest", "1.33", False, id="AWS-T084"),
        pytest.param("windows2025@latest", "1.34", False, id="AWS-T192"),
        pytest.param("windows2025@latest", "1.35", True, id="windows2025-from-1.35"),
        pytest.param("al2023@latest", "1.33", True, id="al2023"),
    ],
)
def test_an_alias_is_refused_where_no_images_are_published(alias: str, kubernetes: str, supported: bool) -> None:
    """AWS-085"""
    assert (ami_selection.unsupported_reason(ami_selection.parse_alias(alias), kubernetes) == "") is supported


def released(environment: NodeClassEnvironment, *missing: str) -> NodeClassEnvironment:
    """Publish all images of al2023@latest, except parameters that contain one of these texts."""
    for number, name in enumerate(names("al2023@latest", environment.cluster.version)):
        if not any(text in name for text in missing):
            arch = "arm64" if "/arm64/" in name else "x86_64"
            environment.ssm.values[name] = f"ami-{number}"
            date = "2025-01-01T00:00:00Z"
            environment.ec2.images.append(
                ImageInfo(image_id=f"ami-{number}", name=f"release-{number}", architecture=arch, creation_date=date)
            )
    return environment


LATEST = {"ami_selector_terms": (AMISelectorTerm(alias="al2023@latest"),), "ami_family": None}


async def test_a_custom_class_uses_the_images_of_an_alias() -> None:
    """AWS-203: the alias selects the images; user data is custom, as for all custom classes."""
    environment = released(NodeClassEnvironment().with_resources())
    await environment.create(**{**LATEST, "ami_family": "Custom"})
    await environment.reconcile()
    node_class = await environment.get()
    assert [ami.id for ami in node_class.status.amis] == ["ami-0", "ami-1", "ami-2", "ami-3", "ami-4"]
    assert effective_ami_family(node_class.spec) == "Custom"


async def test_an_alias_gives_one_image_per_variant() -> None:
    """AWS-T180, AWS-183"""
    environment = released(NodeClassEnvironment().with_resources())
    await environment.create(**LATEST)
    await environment.reconcile()
    amis = (await environment.get()).status.amis
    assert [ami.id for ami in amis] == ["ami-0", "ami-1", "ami-2", "ami-3", "ami-4"]
    standard = {
        image_requirement.key: (image_requirement.operator, image_requirement.values)
        for image_requirement in amis[0].requirements
    }
    assert standard == {
        "kubernetes.io/arch": ("In", ("amd64",)),
        "karpenter.k8s.aws/instance-gpu-count": ("DoesNotExist", ()),
        "karpenter.k8s.aws/instance-accelerator-count": ("DoesNotExist", ()),
    }
    assert await environment.condition("AMIsReady") == ("True", "AMIsReady")
    (event,) = environment.recorder.of("AliasResolved")
    assert event.startswith("alias al2023@latest stands for ami-0 (release-0), ")


async def test_a_variant_without_an_image_is_left_out() -> None:
    """AWS-T181"""
    environment = released(NodeClassEnvironment().with_resources(), "x86_64/nvidia")
    await environment.create(**LATEST)
    await environment.reconcile()
    assert [ami.id for ami in (await environment.get()).status.amis] == ["ami-0", "ami-2", "ami-3", "ami-4"]


async def test_an_image_that_cannot_be_read_now_does_not_count_as_missing() -> None:
    """A class that loses an image for a moment would cause drift."""
    environment = released(NodeClassEnvironment().with_resources())
    await environment.create(**LATEST)
    await environment.reconcile()
    before = (await environment.get()).status.amis
    environment.clock.advance(hours=25)
    environment.ssm.refusals["GetParameter"] = lambda name: THROTTLED if "neuron" in name else None
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert (await environment.get()).status.amis == before
    assert await environment.condition("AMIsReady") == ("True", "AMIsReady")


async def test_an_alias_without_any_image_is_reported_and_retried() -> None:
    """AWS-180"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(**LATEST)
    with pytest.raises(NodeClassReconcileFailed, match='failed to discover any AMIs for alias "al2023@latest"'):
        await environment.reconcile()
    assert await environment.condition("AMIsReady") == ("False", "AMINotFound")


async def test_an_unsupported_alias_is_reported_and_not_retried() -> None:
    """AWS-T084, API-660, API-S174: al2 ends with Kubernetes 1.32."""
    environment = NodeClassEnvironment().with_resources()
    environment.cluster = replace(environment.cluster, version="1.33")
    await environment.create(ami_selector_terms=(AMISelectorTerm(alias="al2@latest"),), ami_family=None)
    assert await environment.reconcile() is None
    assert await environment.condition("AMIsReady") == ("False", "UnsupportedAlias")
    assert environment.ssm.calls == []


async def test_images_that_appear_later_are_found_without_a_change_of_the_class() -> None:
    """AWS-T083"""
    environment = NodeClassEnvironment().with_resources()
    images, environment.ec2.images = environment.ec2.images, []
    await environment.create()
    assert await environment.reconcile() == 60
    assert await environment.condition("AMIsReady") == ("False", "AMINotFound")
    environment.ec2.images = images
    environment.clock.advance(seconds=60)
    await environment.reconcile()
    assert await environment.condition("AMIsReady") == ("True", "AMIsReady")
    assert await environment.condition("Ready") == ("True", "Ready")


@pytest.mark.parametrize("value", [None, "not-an-ami"])
async def test_a_parameter_that_holds_no_image_is_skipped(value: str | None) -> None:
    """AWS-T189, AWS-192"""
    environment = NodeClassEnvironment().with_resources()
    if value is not None:
        environment.ssm.values["/own"] = value
    await environment.create(ami_selector_terms=(AMISelectorTerm(ssm_parameter="/own"),))
    await environment.reconcile()
    assert await environment.condition("AMIsReady") == ("False", "AMINotFound")


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "/aws/service/canonical/ubuntu/eks/22.04/{version}/stable/current/{arch}/hvm/ebs-gp2/ami-id"),
        ({"ubuntu_image_parameter": "/own/{version}/{arch}"}, "/own/{version}/{arch}"),
    ],
)
async def test_ubuntu_without_terms_uses_the_images_of_canonical(settings: dict[str, str], path: str) -> None:
    """API-860, API-A41: of the cluster's minor version, for both architectures."""
    environment = NodeClassEnvironment(**settings).with_resources()
    for index, (arch, image_arch) in enumerate((("amd64", "x86_64"), ("arm64", "arm64"))):
        environment.ssm.values[path.format(version=environment.cluster.version, arch=arch)] = f"ami-{index}"
        environment.ec2.images.append(ImageInfo(image_id=f"ami-{index}", architecture=image_arch))
    await environment.create(ami_family="Ubuntu", ami_selector_terms=())
    await environment.reconcile()
    assert {ami.id for ami in (await environment.get()).status.amis} == {"ami-0", "ami-1"}
    assert await environment.condition("AMIsReady") == ("True", "AMIsReady")


async def test_public_parameters_of_a_vendor_name_an_image_per_architecture() -> None:
    """AWS-942: a term for each architecture; the image's requirement is its architecture and nothing else."""
    environment = NodeClassEnvironment().with_resources()
    path = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
    for arch, image_arch in (("amd64", "x86_64"), ("arm64", "arm64")):
        environment.ssm.values[path.format(arch)] = f"ami-{arch}"
        environment.ec2.images.append(ImageInfo(image_id=f"ami-{arch}", architecture=image_arch))
    terms = tuple(AMISelectorTerm(ssm_parameter=path.format(arch)) for arch in ("amd64", "arm64"))
    await environment.create(ami_family="Custom", ami_selector_terms=terms, user_data="x")
    await environment.reconcile()
    found = {
        ami.id: [(entry.key, tuple(entry.values)) for entry in ami.requirements]
        for ami in (await environment.get()).status.amis
    }
    assert found == {f"ami-{arch}": [("kubernetes.io/arch", (arch,))] for arch in ("amd64", "arm64")}


async def test_a_parameter_without_read_permission_is_an_error() -> None:
    """AWS-192"""
    environment = NodeClassEnvironment().with_resources()
    environment.ssm.refuse("GetParameter", AwsError("AccessDeniedException", "no", status=400))
    await environment.create(ami_selector_terms=(AMISelectorTerm(ssm_parameter="/own"),))
    with pytest.raises(NodeClassReconcileFailed, match="AccessDeniedException"):
        await environment.reconcile()
    assert await environment.condition("AMIsReady") == ("Unknown", "AwaitingReconciliation")
    assert await environment.message("AMIsReady") == "AccessDeniedException: no"


async def test_a_parameter_of_the_account_is_read_every_five_minutes_through_the_cache() -> None:
    """AWS-181, AWS-200 and its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    environment.ssm.values["/own"] = "ami-1"
    await environment.create(ami_selector_terms=(AMISelectorTerm(ssm_parameter="/own"),))
    for _ in range(10):
        await environment.reconcile()
        environment.clock.advance(seconds=59)
    assert len(environment.ssm.calls) == 2


async def test_the_newest_release_is_read_again_once_its_image_is_deprecated() -> None:
    """AWS-T191, AWS-182"""
    environment = released(NodeClassEnvironment().with_resources())
    await environment.create(**LATEST)
    await environment.create("pinned", ami_selector_terms=(AMISelectorTerm(alias="al2023@v1"),), ami_family=None)
    for name in names("al2023@v1", "1.32"):
        environment.ssm.values[name] = "ami-0"
    await environment.reconcile()
    await environment.reconcile("pinned")
    old = next(image_info for image_info in environment.ec2.images if image_info.image_id == "ami-0")
    environment.ec2.images.remove(old)
    environment.ec2.images.append(
        ImageInfo(image_id="ami-0", architecture="x86_64", deprecation_time="2025-12-01T00:00:00Z")
    )
    environment.ssm.calls.clear()
    environment.clock.advance(minutes=30)
    await environment.made.parameters.discard_outdated()
    await environment.reconcile()
    await environment.reconcile("pinned")
    assert environment.ssm.asked("GetParameter") == [
        f"{EKS}/1.32/amazon-linux-2023/x86_64/standard/recommended/image_id"
    ]
