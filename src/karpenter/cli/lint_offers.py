"""What the NodePools of files can launch, each in its own region: repositories hold the pools of many clusters."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from karpenter.api.karpenter import NodePool
from karpenter.cli import planning, region_inference
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.instance_type_sources import FileTypes, PackagedTypes, TypeSource
from karpenter.cli.plan_instance_types import build_plan_types
from karpenter.cli.region_inference import PlanRegion
from karpenter.cli.terminal import WrongInput, collected_errors
from karpenter.instancetypes import ec2_regions
from karpenter.lint.lint_input import PoolOffer
from karpenter.scheduling.offerings.nodepool_templates import static_templates, usable_templates
from karpenter.settings import Settings


def pool_offers(objects: ClusterObjects, region: str, settings: Settings) -> Mapping[str, PoolOffer]:
    """What each NodePool can launch, by its name. ``region`` is that of pools that name none; empty where the objects decide.

    Pools of regions without packaged types are left out. Raises ``WrongInput`` for an instance type file that cannot be used.
    """
    if settings.instance_types_file_path:
        return dict(_offers(objects, FileTypes(settings.instance_types_file_path), ""))
    offers: dict[str, PoolOffer] = {}
    for name, pools in _pools_by_region(objects, region).items():
        if name in ec2_regions.ec2_regions():
            source = PackagedTypes(PlanRegion(name, ""), settings)
            offers.update(_offers(replace(objects, pools=pools), source, name))
    return offers


def _pools_by_region(objects: ClusterObjects, given: str) -> Mapping[str, list[NodePool]]:
    pools: defaultdict[str, list[NodePool]] = defaultdict(list)
    common = _common_region(objects, given)
    for pool in objects.pools:
        own = region_inference.pool_regions(pool)
        pools[next(iter(own)) if len(own) == 1 else common].append(pool)
    return pools


def _common_region(objects: ClusterObjects, given: str) -> str:
    if given:
        return region_inference.find_region(objects, given, {}).name
    try:
        return region_inference.find_region(objects, "", os.environ).name
    except WrongInput:
        return ec2_regions.BASE_REGION  # several regions, or one that nothing is packaged for


def _offers(objects: ClusterObjects, source: TypeSource, region: str) -> Iterator[tuple[str, PoolOffer]]:
    # Reports about instance types, such as conflicts of overlays, belong to plans; they are no findings.
    with collected_errors():
        indexes = build_plan_types(objects, source).indexes
        daemons = planning.cluster_state(objects).snapshot().daemonset_pods
    usable, _ = usable_templates(objects.pools, indexes, daemons, min_values=False, cpu_surplus=False)
    templates = {template.name: template for template in (*usable, *static_templates(objects.pools, indexes, daemons))}
    for pool in objects.pools:
        name = pool.metadata.name
        named = region if region in region_inference.pool_regions(pool) else ""
        yield name, PoolOffer(pool, region, named, indexes[name], templates.get(name))
