"""The chart as Helm renders it with a few values, and what stands in the result."""

from __future__ import annotations

import json

from controlplane import deployed
from controlplane.harness import Json
from helm.charts import of_kind, template, the

CLUSTER = ("--set", "settings.clusterName=x")


def chart(*values: str, **where: str) -> list[Json]:
    flags = [word for value in values for word in ("--set", value)]
    return template(*CLUSTER, *flags, **where)


def of_json(path: str, value: object) -> list[Json]:
    """The objects with a structured value."""
    return template(*CLUSTER, "--set-json", f"{path}={json.dumps(value)}")


def environment(objects: list[Json]) -> dict[str, str]:
    return deployed.environment(the(objects, "Deployment"))


def pod(objects: list[Json]) -> Json:
    return the(objects, "Deployment")["spec"]["template"]["spec"]


def names(objects: list[Json], kind: str) -> list[str]:
    return sorted(str(one["metadata"]["name"]) for one in of_kind(objects, kind))
