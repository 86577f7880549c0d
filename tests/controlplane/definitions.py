"""Our CustomResourceDefinitions as most tests of a control plane need them: without the versions that a webhook converts.

An API server keeps a cache of every version it serves. Nothing routes its call to the Service of the webhook here, so the cache
of ``v1beta1`` would ask for all objects each second, in vain: a third of its CPU. Tests about older versions, rights and whole
installations take the definitions as they are shipped.
"""

from __future__ import annotations

from controlplane.harness import Json
from karpenter.api import crds


def with_stored_versions() -> tuple[Json, ...]:
    """The definitions, those of converted kinds with their stored version only. The controller leaves such a definition alone."""
    return tuple(map(_without_converted_versions, crds.custom_resource_definitions()))


def _without_converted_versions(definition: Json) -> Json:
    spec: Json = definition["spec"]
    if "conversion" not in spec:
        return definition
    stored = [version for version in spec["versions"] if version["storage"]]
    return {**definition, "spec": {**spec, "versions": stored}}
