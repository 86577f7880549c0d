"""AWSNodeTemplate, inline provider and EC2NodeClass of ``v1beta1`` as EC2NodeClass of ``v1`` (API §14.3, §15.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from karpenter.api.ec2_cel_rules import RESTRICTED_TAG_PREFIX, RESTRICTED_TAGS
from karpenter.api.ec2_node_class import VOLUME_SIZE
from karpenter.conversion.images import convert_images, convert_ubuntu
from karpenter.conversion.json_fields import (
    Json,
    as_object,
    list_field,
    object_field,
    text_field,
    text_map,
    text_of,
    warn_unknown_fields,
    without_empty,
)
from karpenter.conversion.notes import NotConvertible, NoteList
from karpenter.conversion.options import ConversionOptions
from karpenter.conversion.selector_maps import selector_terms
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_gib
from karpenter.model.structural_schema import child_path

_ROLE_PLACEHOLDER = "${KARPENTER_NODE_ROLE}"
_CLUSTER_PLACEHOLDER = "${CLUSTER_NAME}"
_COPIED_FIELDS = ("instanceProfile", "userData", "context", "detailedMonitoring")
_TEMPLATE_FIELDS = (
    *("amiFamily", "amiSelector", "subnetSelector", "securityGroupSelector", "tags", "launchTemplate"),
    *("blockDeviceMappings", "metadataOptions", "apiVersion", "kind", *_COPIED_FIELDS),
)
#: What instances had where the template said nothing, and where it said something else (API-785, API-786).
_OPTIONS_WHEN_ABSENT = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 2,
    "httpTokens": "required",
}
_OPTIONS_WHEN_PARTIAL = _OPTIONS_WHEN_ABSENT | {"httpPutResponseHopLimit": 1, "httpTokens": "optional"}


def from_node_template(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The EC2NodeClass of an AWSNodeTemplate. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    return _node_class(metadata, _alpha_spec(metadata, spec, "spec", options, notes))


def from_inline_provider(name: str, provider: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The EC2NodeClass of a Provisioner's ``spec.provider``, named like the Provisioner. Raises ``NotConvertible``."""
    filled = dict(provider)
    default_selector = f"kubernetes.io/cluster/{options.cluster_name or _CLUSTER_PLACEHOLDER}"
    for field in ("subnetSelector", "securityGroupSelector"):
        if not object_field(provider, field, "spec.provider"):
            filled[field] = {default_selector: "*"}
            if not options.cluster_name:
                text = f"the tag {default_selector} is written; replace {_CLUSTER_PLACEHOLDER}, or give --cluster-name"
                notes.warn(f"spec.provider.{field}", text)
    metadata: Json = {"name": name}
    return _node_class(metadata, _alpha_spec(metadata, filled, "spec.provider", options, notes))


def from_beta(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The EC2NodeClass of one of ``v1beta1``. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    if not text_field(spec, "amiFamily") and not list_field(spec, "amiSelectorTerms", "spec"):
        spec["amiFamily"] = "AL2"
        notes.warn("spec.amiFamily", "is missing; AL2 is assumed")
    convert_images(metadata, spec, options, notes)
    metadata_options = object_field(spec, "metadataOptions", "spec")
    spec["metadataOptions"] = {"httpPutResponseHopLimit": 2} | metadata_options
    return _node_class(metadata, spec)


def from_v1(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The same EC2NodeClass, with values corrected that every API server refuses. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    convert_ubuntu(metadata, spec, options, notes)
    return _node_class(metadata, spec)


def with_role(node_class: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The class with a role or an instance profile (API-821)."""
    spec = object_field(node_class, "spec", "")
    if text_field(spec, "role") or text_field(spec, "instanceProfile"):
        return node_class
    if options.instance_profile:
        return {**node_class, "spec": {**spec, "instanceProfile": options.instance_profile}}
    if not options.node_role:
        text = f"is missing; replace {_ROLE_PLACEHOLDER}, or give --node-role or --instance-profile"
        notes.warn("spec.role", text)
    return {**node_class, "spec": {**spec, "role": options.node_role or _ROLE_PLACEHOLDER}}


def _node_class(metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": metadata, "spec": spec}


def _alpha_spec(metadata: Json, spec: Json, path: str, options: ConversionOptions, notes: NoteList) -> Json:
    """The spec of ``v1`` of a template or inline provider that stands at ``path``."""
    if spec.get("launchTemplate"):
        raise NotConvertible(child_path(path, "launchTemplate"), 'cannot convert with "spec.launchTemplate"')
    warn_unknown_fields(spec, _TEMPLATE_FIELDS, path, notes)
    made: Json = {"amiFamily": text_field(spec, "amiFamily") or "AL2"}
    for field in ("ami", "subnet", "securityGroup"):
        selector = text_map(spec, f"{field}Selector", path)
        made[f"{field}SelectorTerms"] = selector_terms(selector, f"{path}.{field}Selector", notes)
    made |= {field: spec[field] for field in _COPIED_FIELDS if spec.get(field) is not None}
    made["tags"] = _tags(text_map(spec, "tags", path), path, notes)
    made["blockDeviceMappings"] = _devices(spec, path, notes)
    given = without_empty(object_field(spec, "metadataOptions", path))
    made["metadataOptions"] = _OPTIONS_WHEN_PARTIAL | given if given else dict(_OPTIONS_WHEN_ABSENT)
    convert_images(metadata, made, options, notes)
    return without_empty(made)


def _tags(tags: Mapping[str, str], path: str, notes: NoteList) -> dict[str, str]:
    kept = {}
    for key, value in tags.items():
        if not key or key in RESTRICTED_TAGS or key.startswith(RESTRICTED_TAG_PREFIX):
            notes.warn(child_path(f"{path}.tags", key), f"tag {key!r} is dropped: only Karpenter sets it")
        else:
            kept[key] = value
    return kept


def _devices(spec: Json, path: str, notes: NoteList) -> list[object]:
    return [
        _device(
            as_object(device, f"{path}.blockDeviceMappings[{index}]"), f"{path}.blockDeviceMappings[{index}]", notes
        )
        for index, device in enumerate(list_field(spec, "blockDeviceMappings", path))
    ]


def _device(device: Json, path: str, notes: NoteList) -> Json:
    """The mapping with a size that admission takes: whole Gi, rounded up (API-784)."""
    volume = object_field(device, "ebs", path)
    size = text_of(volume.get("volumeSize"))
    if not size or re.fullmatch(VOLUME_SIZE, size):
        return device
    try:
        whole = f"{volume_size_gib(size)}Gi"
    except VolumeSizeError as error:
        raise NotConvertible(f"{path}.ebs.volumeSize", str(error)) from error
    notes.warn(f"{path}.ebs.volumeSize", f"{size} is written as {whole}")
    return {**device, "ebs": {**volume, "volumeSize": whole}}
