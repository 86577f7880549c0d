"""Admission rules that need more than one field, as rule expressions of the API server (API-035).

Each is attached to a struct or to one of its fields; ``api.crds`` writes them into the schema. ``model.admission`` says the same
as functions, and a test feeds both with one table. Bounds on sizes elsewhere in the schema keep the estimated cost of
the expressions within what an API server accepts.
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api import buffer, domains, ec2_rules, karpenter, overlay
from karpenter.api.meta import Wire
from karpenter.api.rule import Rule

HOSTNAME = "kubernetes.io/hostname"
NODE_POOL = f"{domains.CORE}/nodepool"


def _domain_rule(key: str, domain: str, allowed: Mapping[str, frozenset[str]] = domains.ADMITTED) -> str:
    admitted = ", ".join(f'"{name}"' for name in sorted(allowed[domain]))
    pattern = domain.replace(".", "[.]")
    return f"{key} in [{admitted}] || !{key}.matches('^([^/]*[.])?{pattern}(/|$)')"


def _restricted_keys(allowed: Mapping[str, frozenset[str]]) -> tuple[Rule, ...]:
    return (
        *(Rule(_domain_rule("self", domain, allowed), f'label domain "{domain}" is restricted') for domain in allowed),
        Rule(f'self != "{HOSTNAME}"', f'label "{HOSTNAME}" is restricted'),
    )


_RESTRICTED_KEYS = _restricted_keys(domains.ADMITTED)
_RESTRICTED_OVERLAY_KEYS = _restricted_keys(domains.ADMITTED_IN_OVERLAYS)
_RESTRICTED_LABELS = (
    *(
        Rule(f"self.all(x, {_domain_rule('x', domain)})", f'label domain "{domain}" is restricted')
        for domain in domains.ADMITTED
    ),
    Rule(f'self.all(x, x != "{HOSTNAME}")', f'label "{HOSTNAME}" is restricted'),
    Rule(f'self.all(x, x != "{NODE_POOL}")', f'label "{NODE_POOL}" is restricted'),
)

_BOUNDS = (
    Rule(
        # A text that is no number makes the expression fail, which refuses as well (API-024); testing it first costs too much.
        "self.all(x, !(x.operator in ['Gt', 'Lt', 'Gte', 'Lte']) "
        "|| (has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0))",
        "requirements with operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",
    ),
)
_REQUIREMENTS = (
    Rule(
        "self.all(x, x.operator != 'In' || (has(x.values) && x.values.size() > 0))",
        "requirements with operator 'In' must have a value defined",
    ),
    *_BOUNDS,
    Rule(
        "self.all(x, x.operator != 'In' || !has(x.minValues) || (has(x.values) && x.values.size() >= x.minValues))",
        "requirements with 'minValues' must have at least that many values specified in the 'values' field",
    ),
)
_POOL_REQUIREMENTS = (
    *_REQUIREMENTS,
    Rule(f'self.all(x, x.key != "{NODE_POOL}")', f'label "{NODE_POOL}" is restricted'),
)


def _not_empty(name: str) -> tuple[Rule, ...]:
    return (Rule("self != ''", f"{name} may not be empty"),)


_POOL_SPEC = (
    Rule(
        "has(self.replicas) == has(oldSelf.replicas)",
        "cannot switch between static and dynamic: replicas may be neither added nor removed",
    ),
    Rule(
        "!has(self.replicas) || !has(self.limits) || self.limits.size() == 0 "
        "|| (self.limits.size() == 1 && 'nodes' in self.limits)",
        "only limits.nodes is supported on static NodePools (those with replicas)",
    ),
    Rule(
        "!has(self.replicas) || !has(self.weight)",
        "weight is not supported on static NodePools (those with replicas)",
    ),
)
_POOL_NODE_CLASS = (
    Rule("self.group == oldSelf.group", "nodeClassRef.group is immutable"),
    Rule("self.kind == oldSelf.kind", "nodeClassRef.kind is immutable"),
)
_BUDGETS = (
    Rule(
        "self.all(x, has(x.schedule) == has(x.duration))",
        "schedule and duration must be set together or not at all",
    ),
)
_OVERLAY_REQUIREMENTS = (
    Rule(
        "self.all(x, !(x.operator in ['In', 'NotIn']) || (has(x.values) && x.values.size() > 0))",
        "requirements with operator 'In' or 'NotIn' must have a value defined",
    ),
    *_BOUNDS,
)
_OVERLAY_SPEC = (Rule("!has(self.price) || !has(self.priceAdjustment)", "cannot set both price and priceAdjustment"),)
_OVERLAY_CAPACITY = tuple(
    Rule(f"!('{name}' in self)", f"restricted resource: an overlay cannot change {name}")
    for name in ("cpu", "memory", "ephemeral-storage", "pods")
)
_BUFFER_SPEC = (
    Rule(
        "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
        "a buffer with podTemplateRef needs replicas or limits",
    ),
    Rule(
        "!has(self.podTemplateRef) || !has(self.scalableRef)",
        "set either podTemplateRef or scalableRef, not both",
    ),
)
_CLAIM_SPEC = (Rule("self == oldSelf", "spec is immutable"),)

#: Rules by struct and wire name of the field they are written on.
BY_FIELD: Mapping[tuple[type[Wire], str], tuple[Rule, ...]] = {
    (karpenter.NodePool, "spec"): _POOL_SPEC,
    (karpenter.NodeClaimTemplateMeta, "labels"): _RESTRICTED_LABELS,
    (karpenter.NodeClaimTemplateSpec, "requirements"): _POOL_REQUIREMENTS,
    (karpenter.NodeClaimTemplateSpec, "nodeClassRef"): _POOL_NODE_CLASS,
    (karpenter.NodeClaimSpec, "requirements"): _REQUIREMENTS,
    (karpenter.NodeClaim, "spec"): _CLAIM_SPEC,
    (karpenter.NodeSelectorRequirementWithMinValues, "key"): _RESTRICTED_KEYS,
    (karpenter.NodeClassReference, "group"): _not_empty("group"),
    (karpenter.NodeClassReference, "kind"): _not_empty("kind"),
    (karpenter.NodeClassReference, "name"): _not_empty("name"),
    (karpenter.Disruption, "budgets"): _BUDGETS,
    (buffer.CapacityBuffer, "spec"): _BUFFER_SPEC,
    (overlay.NodeOverlay, "spec"): _OVERLAY_SPEC,
    (overlay.NodeOverlaySpec, "requirements"): _OVERLAY_REQUIREMENTS,
    (overlay.NodeOverlaySpec, "capacity"): _OVERLAY_CAPACITY,
    (overlay.OverlayRequirement, "key"): _RESTRICTED_OVERLAY_KEYS,
    **ec2_rules.BY_FIELD,
}
