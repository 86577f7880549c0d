"""Image families of older releases as selector terms of ``v1`` (API-730 to API-734, API-860)."""

from __future__ import annotations

from karpenter.conversion.json_fields import Json, list_field, object_field, text_field, text_map
from karpenter.conversion.notes import NoteList
from karpenter.conversion.options import ConversionOptions
from karpenter.model import ubuntu_images

_ALIAS_FAMILIES = frozenset({"AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022"})
_ALIAS_VERSION = "compatibility.karpenter.k8s.aws/v1-alias-version"
_UBUNTU_CHANGES = "compatibility.karpenter.k8s.aws/v1beta1-ubuntu"
_VERSION_PLACEHOLDER = "${KUBERNETES_VERSION}"
_UBUNTU_ROOT = {
    "deviceName": ubuntu_images.ROOT_DEVICE,
    "rootVolume": True,
    "ebs": {"encrypted": True, "volumeType": "gp3", "volumeSize": ubuntu_images.ROOT_VOLUME_SIZE},
}


def convert_images(metadata: Json, spec: Json, options: ConversionOptions, notes: NoteList) -> None:
    """Rewrite ``amiFamily`` and ``amiSelectorTerms`` of a class under construction; they hold the older values."""
    family = text_field(spec, "amiFamily")
    has_terms = bool(list_field(spec, "amiSelectorTerms", "spec"))
    if family == "Ubuntu":
        _convert_ubuntu(metadata, spec, options, notes)
    elif family in _ALIAS_FAMILIES and not has_terms:
        version = text_map(metadata, "annotations", "metadata").get(_ALIAS_VERSION, "latest")
        spec["amiSelectorTerms"] = [{"alias": f"{family.lower()}@{version}"}]
        spec.pop("amiFamily")


def convert_ubuntu(metadata: Json, spec: Json, options: ConversionOptions, notes: NoteList) -> None:
    """Rewrite the family Ubuntu of a class of ``v1``, which Karpenter's ``v1`` does not have (API-838)."""
    if text_field(spec, "amiFamily") == "Ubuntu":
        _convert_ubuntu(metadata, spec, options, notes)


def _convert_ubuntu(metadata: Json, spec: Json, options: ConversionOptions, notes: NoteList) -> None:
    if list_field(spec, "amiSelectorTerms", "spec"):
        _convert_ubuntu_with_terms(metadata, spec, notes)
        return
    family = "Custom" if ubuntu_images.is_self_contained(text_field(spec, "userData")) else "AL2"
    spec["amiFamily"] = family
    spec["amiSelectorTerms"] = _ubuntu_terms(options, notes)
    _add_ubuntu_root(spec)
    notes.warn("spec.amiFamily", f"Ubuntu is written as {family} with the image parameters of Canonical")


def _convert_ubuntu_with_terms(metadata: Json, spec: Json, notes: NoteList) -> None:
    spec["amiFamily"] = "AL2"
    changed = "amiFamily,blockDeviceMappings" if _add_ubuntu_root(spec) else "amiFamily"
    annotations = object_field(metadata, "annotations", "metadata")
    metadata["annotations"] = {**annotations, _UBUNTU_CHANGES: changed}
    notes.warn("spec.amiFamily", "Ubuntu is written as AL2 with the same images")


def _add_ubuntu_root(spec: Json) -> bool:
    """Give the class Ubuntu's root volume where it has no volumes; whether it got one."""
    if list_field(spec, "blockDeviceMappings", "spec"):
        return False
    spec["blockDeviceMappings"] = [_UBUNTU_ROOT]
    return True


def _ubuntu_terms(options: ConversionOptions, notes: NoteList) -> list[Json]:
    version = options.kubernetes_version
    if not version:
        version = _VERSION_PLACEHOLDER
        notes.warn(
            "spec.amiSelectorTerms", f"replace {version} by the cluster's minor version, or give --kubernetes-version"
        )
    return [{"ssmParameter": name} for name in ubuntu_images.image_parameters(version)]
