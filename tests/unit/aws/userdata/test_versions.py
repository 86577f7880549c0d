"""The version of a Bottlerocket image, from its alias or name."""

from __future__ import annotations

import pytest

from karpenter.api.ec2_node_class import AMI, AMISelectorTerm, EC2NodeClass, EC2NodeClassSpec, EC2NodeClassStatus
from karpenter.providers.aws.userdata.bottlerocket import bottlerocket_version

OLD = AMI(id="ami-old", name="bottlerocket-aws-k8s-1.33-x86_64-v1.40.0-abc", requirements=())
NEW = AMI(id="ami-new", name="bottlerocket-aws-k8s-1.33-x86_64-v1.50.0-def", requirements=())


def node_class(term: AMISelectorTerm, *amis: AMI) -> EC2NodeClass:
    return EC2NodeClass(spec=EC2NodeClassSpec(ami_selector_terms=(term,)), status=EC2NodeClassStatus(amis=amis))


@pytest.mark.parametrize(
    ("term", "amis", "version"),
    [
        pytest.param(AMISelectorTerm(alias="bottlerocket@v1.45.0"), (NEW,), "v1.45.0", id="alias"),
        pytest.param(AMISelectorTerm(alias="bottlerocket@latest"), (OLD,), "latest", id="alias latest"),
        pytest.param(AMISelectorTerm(name="bottlerocket-aws-k8s-1.33-*-v1.46.1-*"), (OLD,), "v1.46.1", id="name term"),
        pytest.param(AMISelectorTerm(id="ami-new"), (OLD, NEW), "v1.50.0", id="status image of an id term"),
        pytest.param(AMISelectorTerm(tags={"a": "b"}), (OLD, NEW), "v1.40.0", id="any status image"),
        pytest.param(
            AMISelectorTerm(tags={"a": "b"}), (AMI(id="x", name="own-v1.2.3", requirements=()),), "", id="none"
        ),
    ],
)
def test_the_first_name_with_a_version_decides(term: AMISelectorTerm, amis: tuple[AMI, ...], version: str) -> None:
    """AWS-256."""
    assert bottlerocket_version(node_class(term, *amis)) == version
