"""Whether a plan is valid, checked from the input files and the plan's JSON alone; shares no code with what made the plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]
_ZONE, _CAPACITY = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type"
_SUFFIX = {
    "m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def amount(value: str | int | float) -> Fraction:
    """A quantity as an exact number of its unit."""
    text = str(value)
    digits = text.rstrip("mkMGTKi")
    return Fraction(digits) * _SUFFIX.get(text[len(digits) :], 1)


def faults(objects: Iterable[Json], types: Iterable[Json], plan: Json) -> Iterator[str]:
    """Every fault of a plan in which all pods have to be on new nodes."""
    objects = list(objects)
    pods = {_name(obj): obj for obj in objects if obj["kind"] == "Pod"}
    pools = {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "NodePool"}
    by_name = {instance_type["name"]: instance_type for instance_type in types}
    placed = Counter(name for claim in plan["nodeClaims"] for name in claim["pods"])
    yield from (f"pod {name} is placed {placed[name]} times" for name in pods if placed[name] != 1)
    yield from (f"pod {name} does not exist" for name in placed if name not in pods)
    yield from (f"pod {element['pod']} is not placed" for element in plan["unschedulable"])
    for claim in plan["nodeClaims"]:
        requirements = [
            *pools[claim["nodePool"]]["spec"]["template"]["spec"]["requirements"],
            *claim["requirements"],
            *(entry for name in claim["pods"] for entry in _selector(pods[name])),
        ]
        needed = _needed(pods[name] for name in claim["pods"])
        yield from _claim_faults(claim, requirements, needed, by_name)
    total = sum(claim["cheapest"]["price"] for claim in plan["nodeClaims"])
    if abs(total - plan["cost"]["perHour"]) > 1e-5:
        yield f"the cost is {plan['cost']['perHour']}, the nodes cost {total}"


def _claim_faults(
    claim: Json, requirements: list[Json], needed: Mapping[str, Fraction], by_name: Mapping[str, Json]
) -> Iterator[str]:
    who, prices = claim["name"], []
    for name in claim["instanceTypes"]:
        result = by_name[name]
        yield from (f"{who}: {name} has too little {r}" for r, a in needed.items() if _offered(result, r) < a)
        cheapest = min(_prices(result, requirements), default=None)
        if cheapest is None:
            yield f"{who}: {name} breaks the requirements or cannot be launched"
        else:
            prices.append(cheapest[0])
    if not prices or prices != sorted(prices):
        yield f"{who}: types are not in the order of their prices"
        return
    chosen = claim["cheapest"]
    offerings = {(price, zone, kind) for price, zone, kind in _prices(by_name[chosen["instanceType"]], requirements)}
    if chosen["instanceType"] != claim["instanceTypes"][0] or chosen["price"] != prices[0]:
        yield f"{who}: the cheapest type is not the first"
    if (chosen["price"], chosen["zone"], chosen["capacityType"]) not in offerings:
        yield f"{who}: the cheapest offering does not exist or is not acceptable"


def _name(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', 'default')}/{obj['metadata']['name']}"


def _selector(pod: Json) -> Iterator[Json]:
    for key, value in pod["spec"].get("nodeSelector", {}).items():
        yield {"key": key, "operator": "In", "values": [value]}
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms", [])
    assert len(terms) <= 1, "the checker knows one term only"
    for term in terms:
        yield from term["matchExpressions"]


def _needed(pods: Iterable[Json]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = defaultdict(Fraction)
    for pod in pods:
        total["pods"] += 1
        for container in pod["spec"]["containers"]:
            for name, value in container["resources"]["requests"].items():
                total[name] += amount(value)
    return total


def _offered(instance_type: Json, resource: str) -> Fraction:
    capacity = amount(instance_type["resources"].get(resource, 110 if resource == "pods" else 0))
    return capacity - amount(instance_type.get("overhead", {}).get(resource, 0))


def _prices(instance_type: Json, requirements: Iterable[Json]) -> Iterator[tuple[float, str, str]]:
    """Price, zone and capacity type of every available offering under which the type meets all requirements."""
    own = {
        "node.kubernetes.io/instance-type": {instance_type["name"]},
        "kubernetes.io/arch": {instance_type["architecture"]},
        "kubernetes.io/os": set(instance_type["operatingSystems"]),
        **{key: {value} for key, value in instance_type.get("labels", {}).items()},
    }
    asked = list(requirements)
    if not all(_allows(element, own) for element in asked if element["key"] not in (_ZONE, _CAPACITY)):
        return
    for offering in instance_type["offerings"]:
        at = {requirement["key"]: set(requirement["values"]) for requirement in offering["requirements"]}
        if offering.get("available", True) and all(
            _allows(element, at) for element in asked if element["key"] in (_ZONE, _CAPACITY)
        ):
            for zone in at[_ZONE]:
                for kind in at[_CAPACITY]:
                    yield offering["price"], zone, kind


def _allows(obj: Json, own: Mapping[str, set[str]]) -> bool:
    """Whether some value of the label satisfies the requirement. Labels of the claim itself concern no type."""
    if obj["key"] in ("karpenter.sh/nodepool", "karpenter.kwok.sh/kwoknodeclass"):
        return True
    values, listed, operator = own.get(obj["key"], set()), obj.get("values", []), obj["operator"]
    if operator in ("NotIn", "DoesNotExist"):
        return not values or (operator == "NotIn" and any(value not in listed for value in values))
    if operator == "Exists":
        return bool(values)
    if operator == "In":
        return bool(values.intersection(listed))
    bound = int(listed[0])
    compare = {
        "Gt": lambda v: v > bound,
        "Lt": lambda v: v < bound,
        "Gte": lambda v: v >= bound,
        "Lte": lambda v: v <= bound,
    }
    return any(value.isdigit() and compare[operator](int(value)) for value in values)
