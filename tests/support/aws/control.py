"""Controls of the double for tests and scripts: methods in the process, and the same methods by name over HTTP.

Arguments and results are plain values, so that both are equal; times are RFC 3339 texts.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from support.aws.capacity import Pool, Quotas
from support.aws.faults import REASONS, FailingCalls, Faults
from support.aws.fleets import LaunchFault
from support.aws.images import Image, Release
from support.aws.instances import DoubleInstance, Health, Timing
from support.aws.records import Calls
from support.aws.region import Region, cluster_arn
from support.aws.reservations_and_groups import Group, Reservation
from support.aws.wire import Fields

_SPOT_ENDED = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")


class Control:
    """The controls. ``reset`` restores the initial state."""

    def __init__(self, region: Region, faults: Faults, calls: Calls, reset: Callable[[], None]) -> None:
        self._region = region
        self._faults = faults
        self._calls = calls
        self._reset = reset

    def do(self, name: str, arguments: Mapping[str, Any]) -> object:
        """Call a method by name. Raises ``AttributeError`` if there is none, ``TypeError`` for wrong arguments."""
        method = None if name.startswith("_") or name == "do" else getattr(self, name, None)
        if not inspect.ismethod(method):
            raise AttributeError(f"no such control: {name}")
        return method(**arguments)

    def reset(self) -> None:
        """Restore the initial state."""
        self._reset()

    # -- refused and failing calls --------------------------------------------------------------------------------------------

    def deny(self, action: str, reason: str = "none", resource: str = "*") -> None:
        """Deny an action such as ``ec2:CreateFleet``; ``reason`` is a key of ``faults.REASONS``.

        ``resource`` is ``launch-template`` for policies that deny the action only with a launch template.
        """
        if reason not in REASONS:
            raise ValueError(f"no such reason: {reason}")
        self._faults.denied[(action, resource)] = reason

    def allow(self, action: str) -> None:
        """Allow an action again."""
        for key in [key for key in self._faults.denied if key[0] == action]:
            del self._faults.denied[key]

    def fail(
        self, operation: str, code: str, message: str = "", status: int = 400, times: int = 1, skip: int = 0
    ) -> None:
        """Let ``skip`` calls of an operation (a pattern) pass, then fail ``times`` calls."""
        self._faults.failing.append(FailingCalls(operation, code, message or code, status, times, skip))

    def throttle(self, seconds: float) -> None:
        """Throttle every other call for a time."""
        self._faults.throttle(seconds)

    def limit_rates(self, limited: bool = True) -> None:
        """Whether EC2's request rate limits apply (AWS-756)."""
        self._faults.limited = limited

    def set_latency(self, operation: str, seconds: float) -> None:
        """Delay calls of an operation (``*``: all operations without their own latency)."""
        self._faults.latency[operation] = seconds

    def lose_answer(self, operation: str, nth: int = 1) -> None:
        """The ``nth`` call from now is executed, and its connection breaks before the answer."""
        self._faults.lose_answer(operation, nth)

    def lose_request(self, operation: str, nth: int = 1) -> None:
        """The connection of the ``nth`` call from now breaks before the call is executed."""
        self._faults.lose_request(operation, nth)

    def expire_credentials(self, expired: bool = True) -> None:
        """Set whether credentials have expired."""
        self._faults.expired = expired

    # -- capacity and prices --------------------------------------------------------------------------------------------------

    def set_pool(
        self, instance_type: str, zone: str, capacity_type: str, free: int, after_seconds: float = 0.0
    ) -> None:
        """Set the number of free instances of a pool, now or later."""
        pool = Pool(instance_type, zone, capacity_type)
        if after_seconds > 0:
            self._region.capacity.plan(pool, free, after_seconds)
        else:
            self._region.capacity.set(pool, free)

    def set_interruption_weight(self, instance_type: str, interruption: float) -> None:
        """Set the interruption weight of a type for price-capacity-optimized."""
        self._region.capacity.set_interruption_weight(instance_type, interruption)

    def set_quotas(
        self, on_demand_vcpus: float = math.inf, spot_vcpus: float = math.inf, spot_instances: float = math.inf
    ) -> None:
        """Set the account's quotas for running instances."""
        self._region.capacity.quotas = Quotas(on_demand_vcpus, spot_vcpus, spot_instances)

    def fail_launches(
        self,
        code: str,
        message: str = "",
        instance_type: str = "*",
        zone: str = "*",
        capacity_type: str = "*",
        times: float = math.inf,
    ) -> None:
        """Fleet targets that match the patterns fail ``times`` times, with an error in the answer."""
        launch_faults = LaunchFault(code, message or code, instance_type, zone, capacity_type, times)
        self._region.fleets.behavior.launch_faults.append(launch_faults)

    def give_pods_addresses(self, taken: bool = True) -> None:
        """Whether an instance uses one address of its subnet for each pod that it can run."""
        self._region.fleets.behavior.pods_take_addresses = taken

    def set_spot_price(self, instance_type: str, zone: str, price: float | None) -> None:
        """Set the spot price in USD an hour; None: AWS reports no price."""
        self._region.instance_types.set_spot_price(instance_type, zone, price)

    def set_on_demand_price(self, instance_type: str, price: float) -> None:
        """Set the on-demand price in USD an hour."""
        self._region.instance_types.set_on_demand_price(instance_type, price)

    # -- resources of the account ---------------------------------------------------------------------------------------------

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
        """Add a capacity reservation; return its id. An existing id is replaced."""
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
        return self._region.reservations_and_groups.reserve(reservation)

    def add_group(self, name: str, strategy: str, partitions: int = 0, spread_level: str = "") -> str:
        """Add a placement group; return its id."""
        return self._region.reservations_and_groups.group(Group(name, strategy, partitions, spread_level))

    def add_image(
        self,
        image_id: str,
        name: str,
        architecture: str = "x86_64",
        created: str = "2026-01-01T00:00:00Z",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add an image that the account owns."""
        self._region.images.add(Image(image_id, name, architecture, _moment(created), tags=dict(tags or {})))

    def deprecate_image(self, image_id: str, since: str) -> None:
        """Deprecate an image from a time on."""
        self._region.images.deprecate(image_id, _moment(since))

    def remove_image(self, image_id: str) -> None:
        """Deregister an image."""
        self._region.images.remove(image_id)

    def release_images(self, day: str) -> None:
        """Publish images of that day (``2026-09-01``) for all families; ``latest`` and ``recommended`` name them."""
        self._region.images.release(Release(_moment(day)))

    def image_named(self, name: str) -> str:
        """The id of an image, by name."""
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
        """Add an EKS cluster with its base64 certificate; return its ARN. A ``cidr`` with colons makes it an IPv6 cluster.

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
        """Add an access entry for a role, by its ARN, to all clusters."""
        self._region.permissions_and_quotas.entries[principal] = kind

    def use_config_map_authentication(self) -> None:
        """Set authentication mode CONFIG_MAP for all clusters: calls about access entries are refused."""
        self._region.permissions_and_quotas.has_entries = False

    def set_vcpu_quota(self, code: str, vcpus: float) -> None:
        """Set the quota that Service Quotas reports for a code; ``set_quotas`` limits launches."""
        self._region.permissions_and_quotas.quotas[code] = vcpus

    def set_shifts(self, arn: str, shifts: list[dict[str, str]]) -> None:
        """Set the zonal shifts of a cluster, each with ``zone_id``, ``status`` (APPLIED) and ``expires``."""
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

    # -- instances -------------------------------------------------------------------------------------------------------------

    def set_timing(
        self, pending: float = 0.0, shutting_down: float = 0.0, remembered: float = 3600.0, visible_after: float = 0.0
    ) -> None:
        """Set how long instances stay in each state, in seconds."""
        self._region.instances.timing = Timing(pending, shutting_down, remembered, visible_after)

    def interrupt(self, instance_id: str) -> None:
        """EC2 terminates a spot instance."""
        self._region.instances.end(instance_id, _SPOT_ENDED)

    def stop(self, instance_id: str) -> None:
        """Stop an instance without terminating it."""
        self._region.instances.stop(instance_id)

    def set_health(
        self,
        instance_id: str,
        instance: str = "ok",
        system: str = "ok",
        since: str = "",
        events: list[dict[str, str]] | None = None,
    ) -> None:
        """Set the status checks of an instance; events have ``code``, ``description`` and ``not_before``."""
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
        """Set the whole console output of an instance."""
        self._region.instances.consoles[instance_id] = text

    def instances(self) -> list[dict[str, Any]]:
        """All instances, with their base64 user data."""
        return [self._instance_entry(instance) for instance in list(self._region.instances.by_id.values())]

    def _instance_entry(self, instance: DoubleInstance) -> dict[str, Any]:
        image = self._region.images.find(instance.image_id)
        return {
            "image_name": image.name if image is not None else "",
            "instance_id": instance.instance_id,
            "provider_id": instance.provider_id,
            "instance_type": instance.pool.instance_type,
            "zone": instance.pool.zone,
            "zone_id": instance.zone_id,
            "capacity_type": instance.pool.capacity_type,
            "state": self._region.instances.state(instance),
            "launched_at": instance.launched_at,
            "ended_at": instance.ended_at,
            "image_id": instance.image_id,
            "architecture": instance.architecture,
            "private_dns": instance.private_dns,
            "private_ip": instance.private_ip,
            "user_data": instance.data.get("UserData") or "",
            "tags": instance.tags,
        }

    def calls(self, operation: str = "") -> list[dict[str, Any]]:
        """Recorded calls, of all operations or of one."""
        result = self._calls.of(operation) if operation else list(self._calls.all)
        return [dataclasses.asdict(call) for call in result]

    def forget_calls(self) -> None:
        """Clear the recorded calls."""
        self._calls.clear()


def _moment(text: str) -> datetime:
    fromisoformat = datetime.fromisoformat(text)
    return fromisoformat if fromisoformat.tzinfo else fromisoformat.replace(tzinfo=UTC)
