"""Launch templates: how long they live (AWS §10)."""

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


def test_a_template_is_made_once_and_found_by_others() -> None:
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


def test_a_template_made_by_a_call_whose_answer_was_lost_is_as_good() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.faults["CreateLaunchTemplate"] = [
            AwsError("InvalidLaunchTemplateName.AlreadyExistsException", "it exists")
        ]
        assert await environment.templates.ensure(WANTED) == WANTED.name

    run_scenario(scenario)


def test_templates_stay_while_they_are_used_and_go_hours_later() -> None:
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


def test_templates_beyond_the_share_of_the_quota_go_the_least_recently_used_first() -> None:
    """Issue E24: an account may have 5000, and other clusters want theirs; one that a launch may be using stays."""
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


def test_templates_of_a_class_that_is_no_more_go_at_once() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        assert await environment.templates.collect_garbage(["another"]) == (WANTED.name,)
        assert environment.ec2.templates == {}

    run_scenario(scenario)


def test_a_new_leader_knows_the_templates_there_are() -> None:
    """AWS-484; a template it never used ages from then on."""

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


def test_after_the_end_of_a_class_one_of_its_name_makes_its_own_templates() -> None:
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


def test_a_template_that_is_gone_already_is_no_fault() -> None:
    """AWS-T492."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.templates.ensure(WANTED)
        environment.ec2.faults["DeleteLaunchTemplate"] = [
            AwsError("InvalidLaunchTemplateId.NotFound", "no such template")
        ]
        assert await environment.templates.collect_garbage(()) == (WANTED.name,)
        assert environment.ec2.calls["DeleteLaunchTemplate"] == 1

    run_scenario(scenario)
