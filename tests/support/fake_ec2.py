"""A fake EC2 for launches, with limited pools, client tokens, delayed visibility of instances and lost answers.

Every call awaits ``gate`` before it takes effect and again before it is answered, where a test can count, fail, delay or kill.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import Ec2Filter, tag_list, tag_map
from karpenter.providers.aws.ec2_descriptions import (
    InstanceInfo,
    InstancePlacement,
    InstanceState,
    InstanceStatus,
    StateChange,
)
from karpenter.providers.aws.ec2_requests import (
    FleetAnswer,
    FleetError,
    FleetInstanceSet,
    FleetOverride,
    FleetRequest,
    LaunchTemplate,
    LaunchTemplateData,
    TagSpecification,
    TemplateAndOverrides,
)

Gate = Callable[[str, str], Awaitable[None]]


async def open_gate(call: str, moment: str) -> None:
    """Allows every call."""


@dataclass
class _FakeInstance:
    info: InstanceInfo
    visible_at: datetime


@dataclass
class FakeEc2:
    """Implements the fleet, launch template and instance calls of ``Ec2Api``."""

    clock: Clock
    gate: Gate = open_gate
    visible_after: timedelta = timedelta()
    free: dict[tuple[str, str, str], float] = field(default_factory=dict)
    instances: dict[str, _FakeInstance] = field(default_factory=dict)
    templates: dict[str, tuple[LaunchTemplate, LaunchTemplateData]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    fleets: list[FleetRequest] = field(default_factory=list)
    asked_ids: list[tuple[str, ...]] = field(default_factory=list)
    terminated: list[tuple[str, ...]] = field(default_factory=list)
    answers: dict[str, tuple[bytes, FleetAnswer]] = field(default_factory=dict)
    extra_errors: tuple[FleetError, ...] = ()
    faults: dict[str, list[AwsError]] = field(default_factory=dict)
    #: Console output by instance: the stored output, and the latest output of a running instance.
    consoles: dict[str, str] = field(default_factory=dict)
    latest_consoles: dict[str, str] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def _begin(self, call: str) -> None:
        self.calls[call] += 1
        await self.gate(call, "before")
        if self.faults.get(call):
            raise self.faults[call].pop(0)

    # -- fleets

    async def create_fleet(self, request: FleetRequest) -> FleetAnswer:
        await self._begin("CreateFleet")
        answer = self._answer(request)
        await self.gate("CreateFleet", "after")
        return answer

    def _answer(self, request: FleetRequest) -> FleetAnswer:
        text = msgspec.json.encode(request)
        if request.client_token in self.answers:
            earlier_text, answer = self.answers[request.client_token]
            if earlier_text != text:
                raise AwsError("IdempotentParameterMismatch", "the token was used with other parameters")
            return answer
        for config in request.launch_template_configs:
            if config.launch_template_specification.launch_template_name not in self.templates:
                raise AwsError("InvalidLaunchTemplateName.NotFoundException", "no such template")
        self.fleets.append(request)
        answer = self._execute(request)
        self.answers[request.client_token] = (text, answer)
        return answer

    def _execute(self, request: FleetRequest) -> FleetAnswer:
        kind = request.target_capacity_specification.default_target_capacity_type
        overrides = sorted(
            (override for config in request.launch_template_configs for override in config.overrides),
            key=lambda override: (override.priority or 0.0, override.instance_type, override.availability_zone),
        )
        made: list[FleetInstanceSet] = []
        unavailable: dict[FleetOverride, FleetError] = {}
        for _ in range(request.target_capacity_specification.total_target_capacity):
            for override in overrides:
                pool = (override.instance_type, override.availability_zone, kind)
                if self.free.get(pool, math.inf) > 0:
                    self.free[pool] = self.free.get(pool, math.inf) - 1
                    made.append(self._launch(request, override, kind))
                    break
                unavailable.setdefault(override, _no_capacity(override))
        errors = (*unavailable.values(), *self.extra_errors)
        return FleetAnswer(fleet_id=f"fleet-{len(self.fleets)}", instances=tuple(made), errors=errors)

    def _launch(self, request: FleetRequest, override: FleetOverride, kind: str) -> FleetInstanceSet:
        instance_id = f"i-{next(self._ids):04}"
        own = next(
            tag_specification.tags
            for tag_specification in request.tag_specifications
            if tag_specification.resource_type == "instance"
        )
        now = self.clock.now()
        info = InstanceInfo(
            instance_id=instance_id,
            image_id=override.image_id,
            instance_type=override.instance_type,
            state=InstanceState(name="running"),
            placement=InstancePlacement(availability_zone=override.availability_zone),
            launch_time=now,
            subnet_id=override.subnet_id,
            tags=own,
            instance_lifecycle="spot" if kind == "spot" else "",
        )
        self.instances[instance_id] = _FakeInstance(info, now + self.visible_after)
        return FleetInstanceSet(
            instance_ids=(instance_id,),
            instance_type=override.instance_type,
            launch_template_and_overrides=TemplateAndOverrides(overrides=override),
        )

    async def dry_run_fleet(self, request: FleetRequest) -> None:
        raise AwsError("DryRunOperation", "it would work")

    async def dry_run_instances(self, dry_run: RunInstancesDryRun) -> None:
        raise AwsError("DryRunOperation", "it would work")

    # -- instances

    @property
    def alive(self) -> list[InstanceInfo]:
        result = (instance.info for instance in self.instances.values())
        return [info for info in result if info.state.name == "running"]

    def put(self, info: InstanceInfo) -> None:
        self.instances[info.instance_id] = _FakeInstance(info, self.clock.now())

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        await self._begin("DescribeInstances")
        if ids:
            self.asked_ids.append(tuple(ids))
        seen = {
            key: instance.info for key, instance in self.instances.items() if instance.visible_at <= self.clock.now()
        }
        unknown = [instance_id for instance_id in ids if instance_id not in seen]
        if unknown:
            raise AwsError("InvalidInstanceID.NotFound", f"{unknown} do not exist")
        instance_infos = tuple(info for key, info in seen.items() if (not ids or key in ids) and _passes(info, filters))
        await self.gate("DescribeInstances", "after")
        return instance_infos

    async def terminate_instances(self, ids: Sequence[str]) -> tuple[StateChange, ...]:
        await self._begin("TerminateInstances")
        self.terminated.append(tuple(ids))
        if any(wanted_id not in self.instances for wanted_id in ids):
            raise AwsError("InvalidInstanceID.NotFound", "some do not exist")
        for instance_id in ids:
            instance = self.instances[instance_id]
            instance.info = msgspec.structs.replace(instance.info, state=InstanceState(name="terminated"))
        await self.gate("TerminateInstances", "after")
        return tuple(
            StateChange(instance_id=wanted_id, current_state=InstanceState(name="shutting-down")) for wanted_id in ids
        )

    async def reboot_instances(self, ids: Sequence[str]) -> None:
        await self._begin("RebootInstances")
        if any(wanted_id not in self.instances for wanted_id in ids):
            raise AwsError("InvalidInstanceID.NotFound", "some do not exist")

    async def create_tags(self, ids: Sequence[str], tags_: Mapping[str, str]) -> None:
        await self._begin("CreateTags")
        for instance_id in ids:
            instance = self.instances[instance_id]
            both = {**tag_map(instance.info.tags), **tags_}
            instance.info = msgspec.structs.replace(instance.info, tags=tag_list(both))

    async def get_console_output(self, instance_id: str) -> str:
        await self._begin("GetConsoleOutput")
        return self.consoles.get(instance_id, "")

    async def get_latest_console_output(self, instance_id: str) -> str:
        await self._begin("GetLatestConsoleOutput")
        if instance_id not in self.latest_consoles:
            raise AwsError("UnsupportedOperation", "the instance type or its state has no latest output")
        return self.latest_consoles[instance_id]

    async def describe_instance_status(self, filters: Sequence[Ec2Filter]) -> tuple[InstanceStatus, ...]:
        return ()

    # -- templates

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        await self._begin("DescribeLaunchTemplates")
        launch_templates = [launch_template for launch_template, _ in self.templates.values()]
        if names:
            launch_templates = [
                launch_template for launch_template in launch_templates if launch_template.launch_template_name in names
            ]
            if not launch_templates:
                raise AwsError("InvalidLaunchTemplateName.NotFoundException", "no such template")
        await self.gate("DescribeLaunchTemplates", "after")
        return tuple(
            launch_template for launch_template in launch_templates if _tagged(tag_map(launch_template.tags), filters)
        )

    async def create_launch_template(
        self, name: str, data: LaunchTemplateData, tags: TagSpecification
    ) -> LaunchTemplate:
        await self._begin("CreateLaunchTemplate")
        if name in self.templates:
            raise AwsError("InvalidLaunchTemplateName.AlreadyExistsException", "it exists")
        made = LaunchTemplate(
            launch_template_id=f"lt-{len(self.templates)}-{name[-4:]}",
            launch_template_name=name,
            create_time=self.clock.now(),
            tags=tags.tags,
        )
        self.templates[name] = (made, data)
        await self.gate("CreateLaunchTemplate", "after")
        return made

    async def delete_launch_template(self, template_id: str) -> None:
        await self._begin("DeleteLaunchTemplate")
        names = [
            name
            for name, (launch_template, _) in self.templates.items()
            if launch_template.launch_template_id == template_id
        ]
        if not names:
            raise AwsError("InvalidLaunchTemplateId.NotFound", "no such template")
        del self.templates[names[0]]


def _no_capacity(override: FleetOverride) -> FleetError:
    return FleetError(
        error_code="InsufficientInstanceCapacity",
        error_message="there is none",
        launch_template_and_overrides=TemplateAndOverrides(overrides=override),
    )


def _passes(info: InstanceInfo, filters: Sequence[Ec2Filter]) -> bool:
    attributes = {"instance-state-name": info.state.name, "instance-id": info.instance_id}
    own = all(
        attributes[ec2_filter.name] in ec2_filter.values for ec2_filter in filters if ec2_filter.name in attributes
    )
    return own and _tagged(tag_map(info.tags), filters)


def _tagged(own: Mapping[str, str], filters: Sequence[Ec2Filter]) -> bool:
    for ec2_filter in filters:
        if ec2_filter.name == "tag-key" and not any(value in own for value in ec2_filter.values):
            return False
        if (
            ec2_filter.name.startswith("tag:")
            and own.get(ec2_filter.name.removeprefix("tag:")) not in ec2_filter.values
        ):
            return False
    return True
