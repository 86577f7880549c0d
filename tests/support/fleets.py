"""A small EC2 for launches: pools that run out, client tokens honoured, instances that show late, answers that get lost.

Every call passes ``gate`` before it takes effect and again before it is answered: there a test may count, fail, delay or kill.
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
    """Lets everything pass."""


@dataclass
class _Machine:
    info: InstanceInfo
    visible_at: datetime


@dataclass
class SmallEc2:
    """The port's fleet, template and instance calls."""

    clock: Clock
    gate: Gate = open_gate
    shown_after: timedelta = timedelta()
    free: dict[tuple[str, str, str], float] = field(default_factory=dict)
    machines: dict[str, _Machine] = field(default_factory=dict)
    templates: dict[str, tuple[LaunchTemplate, LaunchTemplateData]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    fleets: list[FleetRequest] = field(default_factory=list)
    asked_ids: list[tuple[str, ...]] = field(default_factory=list)
    ended: list[tuple[str, ...]] = field(default_factory=list)
    answers: dict[str, tuple[bytes, FleetAnswer]] = field(default_factory=dict)
    extra_errors: tuple[FleetError, ...] = ()
    faults: dict[str, list[AwsError]] = field(default_factory=dict)
    #: Console output by instance: what EC2 stored, and what one that runs has printed.
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
        answer = self._answered(request)
        await self.gate("CreateFleet", "after")
        return answer

    def _answered(self, request: FleetRequest) -> FleetAnswer:
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
        answer = self._carried_out(request)
        self.answers[request.client_token] = (text, answer)
        return answer

    def _carried_out(self, request: FleetRequest) -> FleetAnswer:
        kind = request.target_capacity_specification.default_target_capacity_type
        ways = sorted(
            (way for config in request.launch_template_configs for way in config.overrides),
            key=lambda way: (way.priority or 0.0, way.instance_type, way.availability_zone),
        )
        made: list[FleetInstanceSet] = []
        lacking: dict[FleetOverride, FleetError] = {}
        for _ in range(request.target_capacity_specification.total_target_capacity):
            for way in ways:
                pool = (way.instance_type, way.availability_zone, kind)
                if self.free.get(pool, math.inf) > 0:
                    self.free[pool] = self.free.get(pool, math.inf) - 1
                    made.append(self._made(request, way, kind))
                    break
                lacking.setdefault(way, _no_capacity(way))
        errors = (*lacking.values(), *self.extra_errors)
        return FleetAnswer(fleet_id=f"fleet-{len(self.fleets)}", instances=tuple(made), errors=errors)

    def _made(self, request: FleetRequest, way: FleetOverride, kind: str) -> FleetInstanceSet:
        instance_id = f"i-{next(self._ids):04}"
        own = next(
            tag_specification.tags
            for tag_specification in request.tag_specifications
            if tag_specification.resource_type == "instance"
        )
        now = self.clock.now()
        info = InstanceInfo(
            instance_id=instance_id,
            image_id=way.image_id,
            instance_type=way.instance_type,
            state=InstanceState(name="running"),
            placement=InstancePlacement(availability_zone=way.availability_zone),
            launch_time=now,
            subnet_id=way.subnet_id,
            tags=own,
            instance_lifecycle="spot" if kind == "spot" else "",
        )
        self.machines[instance_id] = _Machine(info, now + self.shown_after)
        return FleetInstanceSet(
            instance_ids=(instance_id,),
            instance_type=way.instance_type,
            launch_template_and_overrides=TemplateAndOverrides(overrides=way),
        )

    async def dry_run_fleet(self, request: FleetRequest) -> None:
        raise AwsError("DryRunOperation", "it would work")

    async def dry_run_instances(self, dry_run: RunInstancesDryRun) -> None:
        raise AwsError("DryRunOperation", "it would work")

    # -- instances

    @property
    def alive(self) -> list[InstanceInfo]:
        result = (machine.info for machine in self.machines.values())
        return [info for info in result if info.state.name == "running"]

    def put(self, info: InstanceInfo) -> None:
        self.machines[info.instance_id] = _Machine(info, self.clock.now())

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        await self._begin("DescribeInstances")
        if ids:
            self.asked_ids.append(tuple(ids))
        seen = {key: machine.info for key, machine in self.machines.items() if machine.visible_at <= self.clock.now()}
        unknown = [instance_id for instance_id in ids if instance_id not in seen]
        if unknown:
            raise AwsError("InvalidInstanceID.NotFound", f"{unknown} do not exist")
        instance_infos = tuple(info for key, info in seen.items() if (not ids or key in ids) and _passes(info, filters))
        await self.gate("DescribeInstances", "after")
        return instance_infos

    async def terminate_instances(self, ids: Sequence[str]) -> tuple[StateChange, ...]:
        await self._begin("TerminateInstances")
        self.ended.append(tuple(ids))
        if any(wanted_id not in self.machines for wanted_id in ids):
            raise AwsError("InvalidInstanceID.NotFound", "some do not exist")
        for instance_id in ids:
            machine = self.machines[instance_id]
            machine.info = msgspec.structs.replace(machine.info, state=InstanceState(name="terminated"))
        await self.gate("TerminateInstances", "after")
        return tuple(
            StateChange(instance_id=wanted_id, current_state=InstanceState(name="shutting-down")) for wanted_id in ids
        )

    async def reboot_instances(self, ids: Sequence[str]) -> None:
        await self._begin("RebootInstances")
        if any(wanted_id not in self.machines for wanted_id in ids):
            raise AwsError("InvalidInstanceID.NotFound", "some do not exist")

    async def create_tags(self, ids: Sequence[str], tags_: Mapping[str, str]) -> None:
        await self._begin("CreateTags")
        for instance_id in ids:
            machine = self.machines[instance_id]
            both = {**tag_map(machine.info.tags), **tags_}
            machine.info = msgspec.structs.replace(machine.info, tags=tag_list(both))

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


def _no_capacity(way: FleetOverride) -> FleetError:
    return FleetError(
        error_code="InsufficientInstanceCapacity",
        error_message="there is none",
        launch_template_and_overrides=TemplateAndOverrides(overrides=way),
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
