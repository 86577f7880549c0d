"""Creation, reuse and deletion of launch templates (AWS §10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_requests import LaunchTemplateData
from karpenter.providers.aws.instance.launch_templates import (
    MAX_TEMPLATES,
    TEMPLATE_IN_USE_FOR,
    TEMPLATE_UNUSED_FOR,
    LaunchTemplateParameters,
    LaunchTemplateProvider,
    launch_template_content,
    template_data,
)
from support.launch_environment import (
    CLUSTER,
    LaunchEnvironment,
    node_class,
    run_scenario,
)


def data_of(user_data: bytes = b"") -> LaunchTemplateData:
    """The data of templates that differ in their user data only."""
    return template_data(node_class({}), CLUSTER, LaunchTemplateParameters("ami-1", user_data=user_data), {}, True)


WANTED = launch_template_content(data_of(), {aws_labels.CLUSTER_TAG: "c", aws_labels.NODE_CLASS: "default"})


def test_a_launch_template_is_created_once_and_reused() -> None:
    """AWS-T480, AWS-482."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await asyncio.gather(*(environment.templates.ensure(WANTED) for _ in range(5)))
        assert environment.ec2.calls["CreateLaunchTemplate"] == 1
        again = LaunchTemplateProvider(environment.ec2, CLUSTER, environment.clock)
        await again.ensure(WANTED)
        assert environment.ec2.calls["CreateLaunchTemplate"] == 1
        made, _ = environment.ec2.templates[WANTED.name]
        assert tag_map(made.tags)[aws_labels.NODE_CLASS] == "default"

    run_scenario(scenario)


def test_a_launch_template_of_a_call_whose_answer_was_lost_is_used() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.faults["CreateLaunchTemplate"] = [
            AwsError("InvalidLaunchTemplateName.AlreadyExistsException", "it exists")
        ]
        assert await environment.templates.ensure(WANTED) == WANTED.name

    run_scenario(scenario)


def test_launch_templates_stay_while_they_are_used_and_are_deleted_hours_later() -> None:
    """AWS-T481 with the Beyond of AWS-483."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        await asyncio.sleep(TEMPLATE_UNUSED_FOR.total_seconds() - 60)
        assert await environment.templates.collect_garbage(["default"]) == ()
        await environment.templates.ensure(WANTED)
        await asyncio.sleep(TEMPLATE_UNUSED_FOR.total_seconds() - 60)
        assert await environment.templates.collect_garbage(["default"]) == ()
        await asyncio.sleep(timedelta(hours=1).total_seconds())
        assert await environment.templates.collect_garbage(["default"]) == (WANTED.name,)
        assert environment.ec2.templates == {}

    run_scenario(scenario)


def test_launch_templates_above_the_share_of_the_quota_are_deleted_least_recently_used_first() -> None:
    """Issue E24: an account can have 5000, shared with other clusters; a template that a launch may use stays."""
    contents = [
        launch_template_content(
            data_of(user_data=str(number).encode()), {aws_labels.CLUSTER_TAG: "c", aws_labels.NODE_CLASS: "default"}
        )
        for number in range(MAX_TEMPLATES + 20)
    ]

    async def scenario(environment: LaunchEnvironment) -> None:
        for content in contents[:-5]:
            await environment.templates.ensure(content)
        assert environment.templates.is_collection_due
        assert await environment.templates.collect_garbage(["default"]) == ()
        await asyncio.sleep(TEMPLATE_IN_USE_FOR.total_seconds() + 1)
        for content in (*contents[:3], *contents[-5:]):
            await environment.templates.ensure(content)
        deleted = await environment.templates.collect_garbage(["default"])
        assert set(deleted) == {content.name for content in contents[3:23]}
        assert (environment.templates.count, len(environment.ec2.templates)) == (MAX_TEMPLATES, MAX_TEMPLATES)
        assert not environment.templates.is_collection_due

    run_scenario(scenario)


def test_launch_templates_of_a_deleted_class_are_deleted_at_once() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        assert await environment.templates.collect_garbage(["another"]) == (WANTED.name,)
        assert environment.ec2.templates == {}

    run_scenario(scenario)


def test_a_new_leader_knows_the_existing_launch_templates() -> None:
    """AWS-484; the age of an unused template counts from then on."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        environment.restart()
        await environment.templates.hydrate()
        asked = environment.ec2.calls["DescribeLaunchTemplates"]
        await environment.templates.ensure(WANTED)
        assert environment.ec2.calls["DescribeLaunchTemplates"] == asked
        environment.ec2.faults["DescribeLaunchTemplates"] = [AwsError("RequestLimitExceeded", "slow down")]
        await environment.templates.hydrate()

    run_scenario(scenario)


def test_a_new_class_with_the_name_of_a_deleted_one_creates_its_own_launch_templates() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        environment.ec2.templates.clear()
        environment.templates.forget_class("another")
        await environment.templates.ensure(WANTED)
        assert environment.ec2.templates == {}
        environment.templates.forget_class("default")
        await environment.templates.ensure(WANTED)
        assert list(environment.ec2.templates) == [WANTED.name]

    run_scenario(scenario)


def test_deleting_a_missing_launch_template_is_no_error() -> None:
    """AWS-T492."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        environment.ec2.faults["DeleteLaunchTemplate"] = [
            AwsError("InvalidLaunchTemplateId.NotFound", "no such template")
        ]
        assert await environment.templates.collect_garbage(()) == (WANTED.name,)
        assert environment.ec2.calls["DeleteLaunchTemplate"] == 1

    run_scenario(scenario)
