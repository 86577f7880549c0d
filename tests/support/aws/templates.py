"""Launch templates (AWS-968)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from support.aws.queries import at, named, select
from support.aws.wire import Fields, Refusal

_USER_DATA_LIMIT = 16384
_SHORTEST_NAME = 3
_FILTERS = {"launch-template-name": at("LaunchTemplateName")}


@dataclass(frozen=True)
class Template:
    """A launch template with one version."""

    template_id: str
    name: str
    data: Fields
    created: datetime
    tags: tuple[Fields, ...] = ()


class Templates:
    """The region's launch templates."""

    def __init__(self) -> None:
        self._templates: dict[str, Template] = {}

    def __iter__(self) -> Iterator[Template]:
        return iter(self._templates.values())

    def reset(self) -> None:
        """Remove all launch templates."""
        self._templates.clear()

    def check(self, parameters: Fields) -> None:
        """Checks of CreateLaunchTemplate. Raises ``Refusal``."""
        name = parameters.get("LaunchTemplateName") or ""
        if len(name) < _SHORTEST_NAME:
            raise Refusal(
                "InvalidLaunchTemplateName.MalformedException", f"The launch template name '{name}' is invalid"
            )
        if any(template.name == name for template in self._templates.values()):
            raise Refusal("InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use.")
        _check_user_data(parameters.get("LaunchTemplateData", {}).get("UserData") or "")

    def create(self, parameters: Fields, now: datetime) -> Fields:
        """CreateLaunchTemplate. Raises ``Refusal``."""
        self.check(parameters)
        tags = [
            tag
            for tag_specification in parameters.get("TagSpecifications") or ()
            if tag_specification.get("ResourceType") == "launch-template"
            for tag in tag_specification["Tags"]
        ]
        template = Template(
            template_id=f"lt-{uuid4().hex[:17]}",
            name=parameters["LaunchTemplateName"],
            data=parameters["LaunchTemplateData"],
            created=now,
            tags=tuple(tags),
        )
        self._templates[template.template_id] = template
        return {"LaunchTemplate": _entry(template)}

    def find(self, specification: Fields) -> Template:
        """The template that a request names. Raises ``Refusal``."""
        name, template_id = specification.get("LaunchTemplateName"), specification.get("LaunchTemplateId")
        for template in self._templates.values():
            if template_id == template.template_id or (not template_id and name == template.name):
                return template
        if template_id:
            raise Refusal(
                "InvalidLaunchTemplateId.NotFound",
                f"The specified launch template, with template ID {template_id}, does not exist.",
            )
        raise Refusal(
            "InvalidLaunchTemplateName.NotFoundException",
            f"The specified launch template, with template name {name}, does not exist.",
        )

    def describe(self, parameters: Fields) -> Fields:
        """DescribeLaunchTemplates. Raises ``Refusal``."""
        entries = [_entry(template) for template in self._templates.values()]
        names, ids = parameters.get("LaunchTemplateNames"), parameters.get("LaunchTemplateIds")
        entries = named(entries, "LaunchTemplateName", names, "InvalidLaunchTemplateName.NotFoundException")
        entries = named(entries, "LaunchTemplateId", ids, "InvalidLaunchTemplateId.NotFound")
        return {"LaunchTemplates": select(entries, parameters.get("Filters"), _FILTERS)}

    def versions(self, parameters: Fields) -> Fields:
        """DescribeLaunchTemplateVersions: the only version. Raises ``Refusal``."""
        template = self.find(parameters)
        version = {
            "LaunchTemplateId": template.template_id,
            "LaunchTemplateName": template.name,
            "VersionNumber": 1,
            "CreateTime": template.created,
            "DefaultVersion": True,
            "LaunchTemplateData": template.data,
        }
        return {"LaunchTemplateVersions": [version]}

    def delete(self, parameters: Fields) -> Fields:
        """DeleteLaunchTemplate. Raises ``Refusal``."""
        template = self.find(parameters)
        del self._templates[template.template_id]
        return {"LaunchTemplate": _entry(template)}


def _check_user_data(encoded: str) -> None:
    try:
        size = len(base64.b64decode(encoded, validate=True))
    except binascii.Error:
        raise Refusal("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from None
    if size > _USER_DATA_LIMIT:
        raise Refusal("InvalidUserData.Malformed", f"User data is limited to {_USER_DATA_LIMIT} bytes")


def _entry(template: Template) -> Fields:
    return {
        "LaunchTemplateId": template.template_id,
        "LaunchTemplateName": template.name,
        "CreateTime": template.created,
        "CreatedBy": "arn:aws:sts::123456789012:assumed-role/controller/session",
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 1,
        "Tags": list(template.tags),
    }
