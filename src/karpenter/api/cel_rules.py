"""Admission rules that need more than one field, as rule expressions of the API server (API-035).

Each is attached to a field of a struct. ``api.crds`` writes them into the schema for a real API server, ``model.cel_validation``
evaluates them offline, and a test feeds both with one table. Bounds on sizes elsewhere in the schema keep the estimated cost of
the expressions within what an API server accepts.
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api import capacity_buffer, capacity_schedule, ec2_cel_rules, karpenter, label_domains, node_overlay
from karpenter.api.meta import Wire
from karpenter.api.validation_rule import ValidationRule, for_each

HOSTNAME = "kubernetes.io/hostname"
NODE_POOL = f"{label_domains.CORE_DOMAIN}/nodepool"
_USE_OWN_DOMAIN = "use a label of your own domain"
_LIST_A_VALUE = "list at least one"


def _domain_expression(
    key: str, domain: str, admitted_labels: Mapping[str, frozenset[str]] = label_domains.ADMITTED_LABELS
) -> str:
    admitted = ", ".join(f'"{name}"' for name in sorted(admitted_labels[domain]))
    pattern = domain.replace(".", "[.]")
    return f"{key} in [{admitted}] || !{key}.matches('^([^/]*[.])?{pattern}(/|$)')"


def _restricted_keys(admitted_labels: Mapping[str, frozenset[str]]) -> tuple[ValidationRule, ...]:
    return (
        *(
            ValidationRule(
                _domain_expression("self", domain, admitted_labels),
                f'label domain "{domain}" is restricted',
                "restricted",
                hint=_USE_OWN_DOMAIN,
            )
            for domain in admitted_labels
        ),
        ValidationRule(
            f'self != "{HOSTNAME}"', f'label "{HOSTNAME}" is restricted', "restricted", hint=_USE_OWN_DOMAIN
        ),
    )


_RESTRICTED_KEYS = _restricted_keys(label_domains.ADMITTED_LABELS)
_RESTRICTED_OVERLAY_KEYS = _restricted_keys(label_domains.LABELS_ADMITTED_IN_OVERLAYS)
_RESTRICTED_LABELS = (
    *(
        for_each(
            _domain_expression("x", domain),
            f'label domain "{domain}" is restricted',
            "restricted",
            hint=_USE_OWN_DOMAIN,
        )
        for domain in label_domains.ADMITTED_LABELS
    ),
    *(
        for_each(f'x != "{name}"', f'label "{name}" is restricted', "restricted", hint=_USE_OWN_DOMAIN)
        for name in (HOSTNAME, NODE_POOL)
    ),
)

_INTEGER_BOUNDS = (
    for_each(
        # A text that is no number makes the expression fail, which refuses as well (API-024); testing it first costs too much.
        "!(x.operator in ['Gt', 'Lt', 'Gte', 'Lte']) "
        "|| (has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0)",
        "requirements with operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",
        "bound",
        field="values",
    ),
)
_REQUIREMENTS = (
    for_each(
        "x.operator != 'In' || (has(x.values) && x.values.size() > 0)",
        "requirements with operator 'In' must have a value defined",
        "values",
        field="values",
        hint=_LIST_A_VALUE,
    ),
    *_INTEGER_BOUNDS,
    for_each(
        "x.operator != 'In' || !has(x.minValues) || (has(x.values) && x.values.size() >= x.minValues)",
        "requirements with 'minValues' must have at least that many values specified in the 'values' field",
        "minValues",
        field="values",
    ),
)
_POOL_REQUIREMENTS = (
    *_REQUIREMENTS,
    for_each(
        f'x.key != "{NODE_POOL}"', f'label "{NODE_POOL}" is restricted', "restricted", field="key", hint=_USE_OWN_DOMAIN
    ),
)


def _not_empty(name: str) -> tuple[ValidationRule, ...]:
    return (ValidationRule("self != ''", f"{name} may not be empty", "empty"),)


_POOL_SPEC = (
    ValidationRule(
        "has(self.replicas) == has(oldSelf.replicas)",
        "cannot switch between static and dynamic: replicas may be neither added nor removed",
        "immutable",
        field="replicas",
        hint="make a new NodePool",
    ),
    ValidationRule(
        "!has(self.replicas) || !has(self.limits) || self.limits.size() == 0 "
        "|| (self.limits.size() == 1 && 'nodes' in self.limits)",
        "only limits.nodes is supported on static NodePools (those with replicas)",
        "static",
        field="limits",
    ),
    ValidationRule(
        "!has(self.replicas) || !has(self.weight)",
        "weight is not supported on static NodePools (those with replicas)",
        "static",
        field="weight",
    ),
)
_POOL_NODE_CLASS = tuple(
    ValidationRule(
        f"self.{name} == oldSelf.{name}",
        f"nodeClassRef.{name} is immutable",
        "immutable",
        field=name,
        hint="make a new NodePool",
    )
    for name in ("group", "kind")
)
_BUDGETS = (
    for_each(
        "has(x.schedule) == has(x.duration)", "schedule and duration must be set together or not at all", "together"
    ),
)
_OVERLAY_REQUIREMENTS = (
    for_each(
        "!(x.operator in ['In', 'NotIn']) || (has(x.values) && x.values.size() > 0)",
        "requirements with operator 'In' or 'NotIn' must have a value defined",
        "values",
        field="values",
        hint=_LIST_A_VALUE,
    ),
    *_INTEGER_BOUNDS,
)
_OVERLAY_SPEC = (
    ValidationRule(
        "!has(self.price) || !has(self.priceAdjustment)",
        "cannot set both price and priceAdjustment",
        "price",
        hint="keep one",
    ),
)
#: Resources of a node that no overlay changes (API-153).
OVERLAY_RESTRICTED_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
_OVERLAY_CAPACITY = tuple(
    ValidationRule(
        f"!('{name}' in self)", f"restricted resource: an overlay cannot change {name}", "restricted", field=name
    )
    for name in OVERLAY_RESTRICTED_RESOURCES
)
_BUFFER_SPEC = (
    ValidationRule(
        "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
        "a buffer with podTemplateRef needs replicas or limits",
        "count",
    ),
    ValidationRule(
        "!has(self.podTemplateRef) || !has(self.scalableRef)",
        "set either podTemplateRef or scalableRef, not both",
        "reference",
    ),
)
_SCHEDULE_POOLS = (
    ValidationRule(
        "(has(self.names) && self.names.size() > 0) || (has(self.matchLabels) && self.matchLabels.size() > 0)",
        "select NodePools by names or matchLabels",
        "selection",
    ),
)
_SCHEDULE_HOLIDAYS = (
    ValidationRule("!has(self.subdivision) || has(self.country)", "a subdivision needs its country", "holidays"),
)
_SCHEDULE_RESPECT = (
    ValidationRule(
        "self.size() == 0 || 'DoNotDisrupt' in self",
        "PodDisruptionBudgets cannot be respected where DoNotDisrupt is not",
        "respect",
        hint="add DoNotDisrupt, or leave out both",
    ),
)
_CLAIM_SPEC = (
    ValidationRule("self == oldSelf", "spec is immutable", "immutable", hint="delete the NodeClaim instead"),
)

#: Rules by struct and wire name of the field they are written on.
CEL_RULES: Mapping[tuple[type[Wire], str], tuple[ValidationRule, ...]] = {
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
    (capacity_buffer.CapacityBuffer, "spec"): _BUFFER_SPEC,
    (capacity_schedule.CapacityScheduleSpec, "nodePools"): _SCHEDULE_POOLS,
    (capacity_schedule.CapacityScheduleSpec, "holidays"): _SCHEDULE_HOLIDAYS,
    (capacity_schedule.SleepSettings, "respect"): _SCHEDULE_RESPECT,
    (node_overlay.NodeOverlay, "spec"): _OVERLAY_SPEC,
    (node_overlay.NodeOverlaySpec, "requirements"): _OVERLAY_REQUIREMENTS,
    (node_overlay.NodeOverlaySpec, "capacity"): _OVERLAY_CAPACITY,
    (node_overlay.OverlayRequirement, "key"): _RESTRICTED_OVERLAY_KEYS,
    **ec2_cel_rules.EC2_CEL_RULES,
}
