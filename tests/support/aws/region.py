"""The state of the double's region, and the handlers of operations. moto handles all operations that are not listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from support.aws.capacity import Capacity
from support.aws.ec2_types import Ec2Types
from support.aws.event_bridge import EventBridge
from support.aws.fleets import Fleets, RegionState
from support.aws.images import Images
from support.aws.instances import DoubleInstance, Instances
from support.aws.moto_backend import ACCOUNT, Moto
from support.aws.network import Network
from support.aws.permissions_and_quotas import PermissionsAndQuotas
from support.aws.queries import page
from support.aws.reservations_and_groups import ReservationsAndGroups
from support.aws.templates import Templates
from support.aws.wire import Call, Fields, Refusal

_PROFILES_A_PAGE = 100
Answer = Callable[[Fields], Fields]


@dataclass
class Clusters:
    """EKS clusters by name, and the zonal shifts by cluster ARN."""

    described: dict[str, Fields] = field(default_factory=dict)
    shifts: dict[str, list[Fields]] = field(default_factory=dict)


class Region:
    """The state of a region and the handlers of its operations. ``now`` is seconds since the epoch."""

    def __init__(
        self, moto: Moto, kubernetes: tuple[str, ...], now: Callable[[], float], check_allowed: Callable[[str], None]
    ) -> None:
        self.moto = moto
        self.now = now
        self._kubernetes = kubernetes
        self.instance_types = Ec2Types(moto)
        self.images = Images(kubernetes)
        self.templates = Templates()
        self.reservations_and_groups = ReservationsAndGroups()
        self.capacity = Capacity(self.instance_types, now)
        self.instances = Instances(now, self._release)
        self.network = Network(moto)
        self.clusters = Clusters()
        self.permissions_and_quotas = PermissionsAndQuotas(check_allowed)
        self.event_bridge = EventBridge(moto, self.moment)
        state = RegionState(
            self.instance_types,
            self.images,
            self.templates,
            self.reservations_and_groups,
            self.capacity,
            self.instances,
            self.network,
        )
        self.fleets = Fleets(state, check_allowed)
        self._ec2 = self._ec2_answers()
        self._others = self._other_answers()

    def _release(self, instance: DoubleInstance) -> None:
        self.fleets.release(instance)

    def reset(self) -> None:
        """Initial state. What takes moto seconds to compute is kept."""
        self.moto.reset()
        self.network.forget()
        self.clusters = Clusters()
        self.images.reset()
        for part in (
            self.instance_types,
            self.templates,
            self.reservations_and_groups,
            self.capacity,
            self.instances,
            self.fleets,
            self.permissions_and_quotas,
        ):
            part.reset()

    def moment(self) -> datetime:
        """The current time."""
        return datetime.fromtimestamp(self.now(), UTC)

    def find(self, call: Call) -> Answer | None:
        """The handler of a call; None: moto handles it."""
        if call.service == "ec2":
            return self._ec2.get(call.operation)
        own = self._others.get((call.service, call.operation))
        return own if own is not None and self._is_ours(call) else None

    def _is_ours(self, call: Call) -> bool:
        if call.operation == "GetParameter":
            return self.images.parameter(call.parameters["Name"]) is not None
        return call.operation != "DescribeCluster" or call.parameters["name"] in self.clusters.described

    def _ec2_answers(self) -> Mapping[str, Answer]:
        """Handlers by operation, with the dry runs and pages that all EC2 operations share."""
        plain: dict[str, Answer] = {
            "DescribeInstanceTypes": self.instance_types.describe_types,
            "DescribeInstanceTypeOfferings": self.instance_types.describe_offerings,
            "DescribeSpotPriceHistory": lambda asked: self.instance_types.describe_spot_prices(asked, self.moment()),
            "DescribeSubnets": self._subnets,
            "DescribeSecurityGroups": self._security_groups,
            "DescribeImages": lambda asked: self.images.describe(asked, self.moment()),
            "DescribeCapacityReservations": self.reservations_and_groups.describe_reservations,
            "CreateCapacityReservation": self.reservations_and_groups.create_reservation,
            "DescribePlacementGroups": self.reservations_and_groups.describe_groups,
            "CreatePlacementGroup": self.reservations_and_groups.create_group,
            "CreateLaunchTemplate": lambda asked: self.templates.create(asked, self.moment()),
            "DescribeLaunchTemplates": self.templates.describe,
            "DescribeLaunchTemplateVersions": self.templates.versions,
            "DeleteLaunchTemplate": self.templates.delete,
            "CreateFleet": self.fleets.create,
            "RunInstances": self.fleets.run,
            "DescribeInstances": self.instances.describe,
            "DescribeInstanceStatus": self.instances.describe_status,
            "GetConsoleOutput": self.instances.console,
            "DescribeInstanceAttribute": self.instances.user_data,
            "TerminateInstances": self.instances.terminate,
            "RebootInstances": self.instances.reboot,
            "CreateTags": self._tag,
        }
        checks: dict[str, Callable[[Fields], object]] = {
            "CreateLaunchTemplate": self.templates.check,
            "CreateFleet": self.fleets.check_fleet,
            "RunInstances": self.fleets.check_run,
        }
        return {name: _ec2(name, answer, checks.get(name)) for name, answer in plain.items()}

    def _other_answers(self) -> Mapping[tuple[str, str], Answer]:
        return {
            ("ssm", "GetParameter"): self._parameter,
            ("pricing", "GetProducts"): self.instance_types.products,
            ("iam", "ListInstanceProfiles"): self._profiles,
            ("events", "PutEvents"): self.event_bridge.put,
            ("iam", "SimulatePrincipalPolicy"): self.permissions_and_quotas.simulate,
            ("eks", "DescribeAccessEntry"): self.permissions_and_quotas.access_entry,
            ("service-quotas", "GetServiceQuota"): self.permissions_and_quotas.quota,
            ("eks", "DescribeCluster"): lambda asked: {"cluster": self.clusters.described[asked["name"]]},
            ("arc-zonal-shift", "GetManagedResource"): self._managed_resource,
        }

    # -- answers that need moto -----------------------------------------------------------------------------------------------

    def _subnets(self, parameters: Fields) -> Fields:
        subnets = self.moto.ask("ec2", "DescribeSubnets", _unpaged(parameters))["Subnets"]
        alive = self.instances.alive()
        counted = [{**entry, "AvailableIpAddressCount": self.network.free_addresses(entry, alive)} for entry in subnets]
        return {"Subnets": counted}

    def _security_groups(self, parameters: Fields) -> Fields:
        return self.moto.ask("ec2", "DescribeSecurityGroups", _unpaged(parameters))

    def _tag(self, parameters: Fields) -> Fields:
        ids = list(parameters.get("Resources") or ())
        tags = {tag["Key"]: tag.get("Value") or "" for tag in parameters.get("Tags") or ()}
        self.instances.check_tags(ids)
        self.instances.tag([name for name in ids if name.startswith("i-")], tags)
        for name in ids:
            if name in self.reservations_and_groups.reservations:
                reservation = self.reservations_and_groups.reservations[name]
                self.reservations_and_groups.reservations[name] = replace(
                    reservation, tags={**reservation.tags, **tags}
                )
            elif (image := self.images.find(name)) is not None:
                self.images.add(replace(image, tags={**image.tags, **tags}))
        others = [name for name in ids if not name.startswith(("i-", "cr-", "ami-", "lt-", "pg-"))]
        if others:
            self.moto.ask("ec2", "CreateTags", {"Resources": others, "Tags": parameters["Tags"]})
            self.network.forget()
        return {}

    def _profiles(self, parameters: Fields) -> Fields:
        prefix = parameters.get("PathPrefix") or "/"
        instance_profiles = self.moto.ask("iam", "ListInstanceProfiles")["InstanceProfiles"]
        below = [entry for entry in instance_profiles if entry["Path"].startswith(prefix)]
        start, size = int(parameters.get("Marker") or 0), parameters.get("MaxItems") or _PROFILES_A_PAGE
        more = start + size < len(below)
        rest = {"Marker": str(start + size)} if more else {}
        return {"InstanceProfiles": below[start : start + size], "IsTruncated": more, **rest}

    def _parameter(self, parameters: Fields) -> Fields:
        name = parameters["Name"]
        parameter = {
            "Name": name,
            "Type": "String",
            "Value": self.images.parameter(name),
            "Version": 1,
            "DataType": "text",
        }
        return {"Parameter": parameter}

    def _managed_resource(self, parameters: Fields) -> Fields:
        arn = parameters["resourceIdentifier"]
        shifts = self.clusters.shifts.get(arn)
        if shifts is None:
            raise Refusal("ResourceNotFoundException", "The resource could not be found.", 404)
        name = arn.rpartition("/")[2]
        return {"arn": arn, "name": name, "appliedWeights": {}, "zonalShifts": shifts}


def _unpaged(parameters: Fields) -> Fields:
    return {key: value for key, value in parameters.items() if key not in ("MaxResults", "NextToken", "DryRun")}


def _ec2(operation: str, answer: Answer, check: Callable[[Fields], object] | None) -> Answer:
    def answered(parameters: Fields) -> Fields:
        if parameters.get("DryRun"):
            if check is not None:
                check(parameters)
            raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        return page(operation, parameters, answer(parameters))

    return answered


def cluster_arn(region: str, name: str) -> str:
    """The ARN of an EKS cluster."""
    return f"arn:aws:eks:{region}:{ACCOUNT}:cluster/{name}"
