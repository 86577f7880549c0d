"""What tests and scripts may do to the double, in process as methods and over HTTP by their names.

Arguments and results are plain values, so that both ways are the same; moments are RFC 3339 texts.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from support.aws.answers import Region, cluster_arn
from support.aws.capacity import Pool, Quotas
from support.aws.faults import REASONS, Failing, Faults
from support.aws.fleets import Stumbling
from support.aws.images import Image, Release
from support.aws.instances import Health, Machine, Timing
from support.aws.records import Calls
from support.aws.reservations_and_groups import Group, Reservation
from support.aws.wire import Fields

_SPOT_ENDED = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")


class Control:
    """The switches. ``reset`` puts everything back."""

    def __init__(self, region: Region, faults: Faults, calls: Calls, reset: Callable[[], None]) -> None:
        self._region = region
        self._faults = faults
        self._calls = calls
        self._reset = reset

    def do(self, name: str, arguments: Mapping[str, Any]) -> object:
        """A method by name. Raises ``AttributeError`` for one that is not there, ``TypeError`` for wrong arguments."""
        method = None if name.startswith("_") or name == "do" else getattr(self, name, None)
        if not inspect.ismethod(method):
            raise AttributeError(f"no such control: {name}")
        return method(**arguments)

    def reset(self) -> None:
        """As in the beginning."""
        self._reset()

    # -- refusals and trouble on the way --------------------------------------------------------------------------------------

    def deny(self, action: str, reason: str = "none", resource: str = "*") -> None:
        """An action such as ``ec2:CreateFleet`` is not allowed; ``reason`` is a key of ``faults.REASONS``.

        ``resource`` is ``launch-template`` for what policies deny only through a template.
        """
        if reason not in REASONS:
            raise ValueError(f"no such reason: {reason}")
        self._faults.denied[(action, resource)] = reason

    def allow(self, action: str) -> None:
        """It is allowed again."""
        for key in [key for key in self._faults.denied if key[0] == action]:
            del self._faults.denied[key]

    def fail(
        self, operation: str, code: str, message: str = "", status: int = 400, times: int = 1, skip: int = 0
    ) -> None:
        """After ``skip`` calls that pass, ``times`` calls of an operation (a pattern) fail."""
        self._faults.failing.append(Failing(operation, code, message or code, status, times, skip))

    def storm(self, seconds: float) -> None:
        """For so long every other call is throttled."""
        self._faults.storm(seconds)

    def limit_rates(self, limited: bool = True) -> None:
        """Whether EC2's request budgets hold (AWS-756)."""
        self._faults.limited = limited

    def set_latency(self, operation: str, seconds: float) -> None:
        """Calls of an operation (``*``: all without a value of their own) wait so long."""
        self._faults.latency[operation] = seconds

    def lose_answer(self, operation: str, nth: int = 1) -> None:
        """The ``nth`` call from now is carried out and the connection breaks before the answer."""
        self._faults.lose_answer(operation, nth)

    def lose_request(self, operation: str, nth: int = 1) -> None:
        """The connection of the ``nth`` call from now breaks before it is carried out."""
        self._faults.lose_request(operation, nth)

    def expire_credentials(self, expired: bool = True) -> None:
        """Whether credentials have expired."""
        self._faults.expired = expired

    # -- capacity and prices --------------------------------------------------------------------------------------------------

    def set_pool(
        self, instance_type: str, zone: str, capacity_type: str, free: int, after_seconds: float = 0.0
    ) -> None:
        """So many machines are left in a pool, now or later."""
        pool = Pool(instance_type, zone, capacity_type)
        if after_seconds > 0:
            self._region.capacity.plan(pool, free, after_seconds)
        else:
            self._region.capacity.set(pool, free)

    def weigh(self, instance_type: str, interruption: float) -> None:
        """How much price-capacity-optimized shies away from a type."""
        self._region.capacity.weigh(instance_type, interruption)

    def set_quotas(
        self, on_demand_vcpus: float = math.inf, spot_vcpus: float = math.inf, spot_machines: float = math.inf
    ) -> None:
        """What the account may have at once."""
        self._region.capacity.quotas = Quotas(on_demand_vcpus, spot_vcpus, spot_machines)

    def stumble(
        self,
        code: str,
        message: str = "",
        instance_type: str = "*",
        zone: str = "*",
        capacity_type: str = "*",
        times: float = math.inf,
    ) -> None:
        """Ways of fleets that match the patterns fail with an error in the answer, so many times."""
        stumbling = Stumbling(code, message or code, instance_type, zone, capacity_type, times)
        self._region.fleets.habits.stumbling.append(stumbling)

    def let_pods_take_addresses(self, taken: bool = True) -> None:
        """Whether a machine takes an address of its subnet for every pod it may have."""
        self._region.fleets.habits.pods_take_addresses = taken

    def set_spot_price(self, instance_type: str, zone: str, price: float | None) -> None:
        """USD an hour; None: the market tells none."""
        self._region.market.set_spot_price(instance_type, zone, price)

    def set_on_demand_price(self, instance_type: str, price: float) -> None:
        """USD an hour."""
        self._region.market.set_on_demand_price(instance_type, price)

    # -- things of the account ------------------------------------------------------------------------------------------------

    def reserve(
        self,
        instance_type: str,
        zone: str,
        total: int,
        kind: str = "default",
        match: str = "targeted",
        interruptible: bool = False,
        end: str = "",
        tags: Mapping[str, str] | None = None,
        reservation_id: str = "",
    ) -> str:
        """A capacity reservation; its id. The same id again: in the place of the former."""
        reservation = Reservation(
            instance_type=instance_type,
            zone=zone,
            total=total,
            kind=kind,
            match=match,
            interruptible=interruptible,
            end=_moment(end) if end else None,
            tags=dict(tags or {}),
            reservation_id=reservation_id,
        )
        return self._region.holdings.reserve(reservation)

    def add_group(self, name: str, strategy: str, partitions: int = 0, spread_level: str = "") -> str:
        """A placement group; its id."""
        return self._region.holdings.group(Group(name, strategy, partitions, spread_level))

    def add_image(
        self,
        image_id: str,
        name: str,
        architecture: str = "x86_64",
        created: str = "2026-01-01T00:00:00Z",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """An image of the account's own."""
        self._region.images.add(Image(image_id, name, architecture, _moment(created), tags=dict(tags or {})))

    def deprecate_image(self, image_id: str, since: str) -> None:
        """The image is deprecated from that moment on."""
        self._region.images.deprecate(image_id, _moment(since))

    def remove_image(self, image_id: str) -> None:
        """The image is deregistered."""
        self._region.images.remove(image_id)

    def release_images(self, day: str) -> None:
        """All families publish images of that day (``2026-09-01``); ``latest`` and ``recommended`` are these."""
        self._region.images.release(Release(_moment(day)))

    def image_named(self, name: str) -> str:
        """The id of an image."""
        return self._region.images.by_name(name).image_id

    def add_cluster(
        self,
        name: str,
        endpoint: str,
        certificate: str,
        version: str = "1.35",
        cidr: str = "172.20.0.0/16",
        vpc: Fields | None = None,
    ) -> str:
        """An EKS cluster with the base64 of its certificate; its ARN. ``cidr`` with colons makes it one of IPv6.

        ``vpc``: its ``resourcesVpcConfig``.
        """
        family = "ipv6" if ":" in cidr else "ipv4"
        network = {"ipFamily": family, f"service{family.capitalize()}Cidr": cidr}
        described: Fields = {
            "name": name,
            "arn": cluster_arn(self._region.moto.region, name),
            "version": version,
            "endpoint": endpoint,
            "certificateAuthority": {"data": certificate},
            "kubernetesNetworkConfig": network,
            "resourcesVpcConfig": vpc or {},
            "status": "ACTIVE",
        }
        self._region.clusters.described[name] = described
        self._region.clusters.shifts.setdefault(described["arn"], [])
        return str(described["arn"])

    def add_access_entry(self, principal: str, kind: str = "EC2_LINUX") -> None:
        """Clusters know a role, by its ARN."""
        self._region.examined.entries[principal] = kind

    def know_roles_by_config_map(self) -> None:
        """Clusters have authentication mode CONFIG_MAP: calls about access entries are refused."""
        self._region.examined.has_entries = False

    def set_vcpu_quota(self, code: str, vcpus: float) -> None:
        """What Service Quotas says of a quota, by its code; what can be bought is ``set_quotas``."""
        self._region.examined.quotas[code] = vcpus

    def set_shifts(self, arn: str, shifts: list[dict[str, str]]) -> None:
        """The zonal shifts of a cluster: each with ``zone_id``, ``status`` (APPLIED) and ``expires``."""
        self._region.clusters.shifts[arn] = [
            {
                "awayFrom": shift["zone_id"],
                "appliedStatus": shift.get("status", "APPLIED"),
                "expiryTime": _moment(shift["expires"]),
                "startTime": self._region.moment(),
                "comment": "",
                "resourceIdentifier": arn,
                "zonalShiftId": f"shift-{index}",
            }
            for index, shift in enumerate(shifts)
        ]

    # -- machines -------------------------------------------------------------------------------------------------------------

    def set_timing(
        self, pending: float = 0.0, shutting_down: float = 0.0, remembered: float = 3600.0, visible_after: float = 0.0
    ) -> None:
        """How long machines stay in a state, in seconds."""
        self._region.instances.timing = Timing(pending, shutting_down, remembered, visible_after)

    def interrupt(self, instance_id: str) -> None:
        """EC2 takes a machine away."""
        self._region.instances.end(instance_id, _SPOT_ENDED)

    def stop(self, instance_id: str) -> None:
        """A machine is stopped, not ended."""
        self._region.instances.stop(instance_id)

    def set_health(
        self,
        instance_id: str,
        instance: str = "ok",
        system: str = "ok",
        since: str = "",
        events: list[dict[str, str]] | None = None,
    ) -> None:
        """What EC2's checks say; events have ``code``, ``description`` and ``not_before``."""
        planned = tuple(
            {
                "InstanceEventId": f"event-{index}",
                "Code": event["code"],
                "Description": event.get("description", ""),
                **({"NotBefore": _moment(event["not_before"])} if "not_before" in event else {}),
            }
            for index, event in enumerate(events or ())
        )
        self._region.instances.set_health(
            instance_id, Health(instance, system, _moment(since) if since else None, planned)
        )

    def print_on_console(self, instance_id: str, text: str) -> None:
        """What a machine has printed, all of it."""
        self._region.instances.consoles[instance_id] = text

    def machines(self) -> list[dict[str, Any]]:
        """All machines, with what their user data says in base64."""
        return [self._machine(machine) for machine in list(self._region.instances.machines.values())]

    def _machine(self, machine: Machine) -> dict[str, Any]:
        image = self._region.images.find(machine.image_id)
        return {
            "image_name": image.name if image is not None else "",
            "instance_id": machine.instance_id,
            "provider_id": machine.provider_id,
            "instance_type": machine.pool.instance_type,
            "zone": machine.pool.zone,
            "zone_id": machine.zone_id,
            "capacity_type": machine.pool.capacity_type,
            "state": self._region.instances.state(machine),
            "launched_at": machine.launched_at,
            "ended_at": machine.ended_at,
            "image_id": machine.image_id,
            "architecture": machine.architecture,
            "private_dns": machine.private_dns,
            "private_ip": machine.private_ip,
            "user_data": machine.data.get("UserData") or "",
            "tags": machine.tags,
        }

    def calls(self, operation: str = "") -> list[dict[str, Any]]:
        """The record of calls, of all operations or of one."""
        result = self._calls.of(operation) if operation else list(self._calls.all)
        return [dataclasses.asdict(call) for call in result]

    def forget_calls(self) -> None:
        """The record begins anew."""
        self._calls.clear()


def _moment(text: str) -> datetime:
    fromisoformat = datetime.fromisoformat(text)
    return fromisoformat if fromisoformat.tzinfo else fromisoformat.replace(tzinfo=UTC)
