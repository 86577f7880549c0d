"""Preconditions of a launch: a Ready class, instance types, a cluster (AWS §9)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    EC2NodeClass,
    EC2NodeClassSpec,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_provider import AwsProvider, check_node_class_ready, ready_node_class
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from support.launch_environment import (
    LaunchEnvironment,
    claim,
    node_class,
    run_scenario,
)
from support.launch_helpers import LARGE, launch


def ready(status: str, message: str = "", generation: int = 1) -> Mapping[str, Any]:
    return {"conditions": (Condition(type="Ready", status=status, message=message, observed_generation=generation),)}


@pytest.mark.parametrize(
    ("status", "spec", "expected", "text"),
    [
        pytest.param(ready("False", "no images"), {}, NodeClassNotReady, "no images", id="AWS-T423"),
        pytest.param(ready("True", generation=0), {}, NodeClassNotReady, "changed", id="AWS-T424"),
        pytest.param(ready("Unknown", "wait"), {}, LaunchFailed, "wait", id="AWS-413"),
        pytest.param({"conditions": ()}, {}, LaunchFailed, "not known to be ready", id="AWS-413 absent"),
        pytest.param(
            ready("True"),
            {"tags": {"karpenter.sh/nodepool": "x"}},
            NodeClassNotReady,
            "karpenter.sh/nodepool",
            id="AWS-415",
        ),
    ],
)
def test_a_class_that_is_not_ready_launches_nothing(
    status: Mapping[str, Any], spec: Mapping[str, Any], expected: type[ProviderError], text: str
) -> None:
    """AWS-412, AWS-414, API-377, API-S177: an old generation counts as not ready."""
    with pytest.raises(expected, match=text):
        check_node_class_ready(node_class(spec, **status))


def _provider_without_types(environment: LaunchEnvironment) -> AwsProvider:
    def types_for(node_class: EC2NodeClass) -> tuple[InstanceType, ...]:
        raise ProviderError("no instance types found")

    dependencies: Any = SimpleNamespace(
        cluster_view=SimpleNamespace(node_class_named=lambda name: node_class(), pools=tuple),
        instance_types=SimpleNamespace(types_for=types_for),
        launcher=environment.launcher,
    )
    return AwsProvider(dependencies, environment.clock, reserved_capacity=True)


async def expected(environment: LaunchEnvironment) -> NodeClaim:
    """A NodeClaim that the launcher expects."""
    claimed = await environment.claim()
    environment.launcher.expected_launches.on_claim(None, claimed)
    assert environment.launcher.expected_launches.has_more()
    return claimed


def test_without_instance_types_a_launch_fails_with_a_reason() -> None:
    """AWS-416: nothing is launched, and the error of the NodeClaim names EC2's instance types as the cause."""

    async def scenario(environment: LaunchEnvironment) -> None:
        with pytest.raises(LaunchFailed, match="no instance types found") as caught:
            await _provider_without_types(environment).create(await expected(environment))
        assert caught.value.reason == "InstanceTypeResolutionFailed"
        assert environment.ec2.calls["CreateFleet"] == 0
        assert not environment.launcher.expected_launches.has_more()  # nothing waits for it

    run_scenario(scenario)


def test_the_provider_has_the_name_aws_and_its_node_class_kind() -> None:
    """AWS-691"""

    async def scenario(environment: LaunchEnvironment) -> None:
        provider = _provider_without_types(environment)
        assert (provider.name, provider.node_class_kinds) == ("aws", (EC2_NODE_CLASS,))

    run_scenario(scenario)


def test_a_missing_or_deleted_class_is_reported_on_the_claim() -> None:
    """AWS-410."""

    async def scenario(environment: LaunchEnvironment) -> None:
        with pytest.raises(InsufficientCapacity, match="does not exist"):
            await ready_node_class(environment.kube, claim(), environment.recorded)
        own = ObjectMeta(name="default", finalizers=("karpenter.k8s.aws/termination",))
        spec = EC2NodeClassSpec(
            subnet_selector_terms=(SubnetSelectorTerm(id="subnet-1"),),
            security_group_selector_terms=(SecurityGroupSelectorTerm(id="sg-1"),),
            ami_selector_terms=(AMISelectorTerm(alias="al2023@latest"),),
            role="nodes",
        )
        await environment.kube.create(EC2_NODE_CLASS, EC2NodeClass(metadata=own, spec=spec))
        await environment.kube.delete(EC2_NODE_CLASS, "default")
        with pytest.raises(InsufficientCapacity, match="being deleted"):
            await ready_node_class(environment.kube, claim(), environment.recorded)
        assert [name for name, _ in environment.recorded.warnings] == ["one", "one"]

    run_scenario(scenario)


def test_the_launch_batch_is_written_on_the_claim_before_the_launch() -> None:
    """Issue 8: the launch batch is stored before the call."""

    async def scenario(environment: LaunchEnvironment) -> None:
        seen: list[str] = []

        async def gate(call: str, moment: str) -> None:
            if (call, moment) == ("CreateFleet", "before"):
                stored = await environment.kube.get(NODE_CLAIM, "one")
                seen.append(stored.metadata.annotations[aws_labels.LAUNCH_BATCH])

        environment.ec2.gate = gate
        await launch(environment, LARGE)
        assert seen == [environment.ec2.fleets[0].client_token]
        assert tag_map(environment.ec2.alive[0].tags)[aws_labels.LAUNCH_BATCH] == seen[0]

    run_scenario(scenario)
