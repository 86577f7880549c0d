"""The file of notifications: what it may say, and the one line a mistake gives."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from karpenter.notifications.notification_config import (
    NotificationConfigError,
    load_notification_config,
    parse_notification_config,
)

ROOT = Path(__file__).parents[3]
DESTINATION = "destinations: [{name: ops, url: 'https://hooks.example/x'%s}]\n"
RULES = "rules: [{destinations: [ops]}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: []", "n: Object missing required field `destinations`"),
        (
            DESTINATION % "" + "rules: [{destinations: [dev]}]",
            "n: rules[0].destinations: 'dev' is no destination; there are ops",
        ),
        (DESTINATION % ", urlFile: /u" + RULES, "n: destinations[0].url: set either url or urlFile"),
        ("destinations: [{name: ops}]\n" + RULES, "n: destinations[0].url: set either url or urlFile"),
        (
            "destinations: [{name: ops, url: 'ftp://x'}]\n" + RULES,
            "n: destinations[0].url: must be an http or https URL",
        ),
        (
            "destinations: [{name: ops, url: 'https://me:pw@x'}]\n" + RULES,
            "n: destinations[0].url: holds credentials; put the address into a file and name it in urlFile",
        ),
        (
            DESTINATION % ", headers: {X-Source: a, X-Api-Key: pw}" + RULES,
            "n: destinations[0].headers: X-Api-Key holds a secret; put its value into a file and name it in headerFiles",
        ),
        (
            DESTINATION % ", headers: {authorization: Bearer pw}" + RULES,
            "n: destinations[0].headers: authorization holds a secret; ",
        ),
        (
            "destinations: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]\nrules: []",
            "n: destinations[1].name: 'a' is used twice",
        ),
        (DESTINATION % ", batch: {window: 2h}" + RULES, "n: destinations[0].batch.window: 2h is not between 0s and 1h"),
        (
            DESTINATION % ", line: '$severty'" + RULES,
            "n: destinations[0].line: $severty is no field; choose cluster, count, kind, message, name, namespace, object, "
            "reason, severity, time",
        ),
        (
            DESTINATION % ", line: '5 $ a'" + RULES,
            "n: destinations[0].line: a $ is followed by no field; write $$ for the sign itself",
        ),
        (
            DESTINATION % """, body: '{"text": $lines'""" + RULES,
            "n: destinations[0].body: is not JSON once its fields are filled in",
        ),
        (
            DESTINATION % ", quietHours: {timeZone: Mars/Base, windows: [{from: '22:00', until: '07:00'}]}" + RULES,
            "n: destinations[0].quietHours: timeZone: ",
        ),
        (DESTINATION % ", frmat: Slack" + RULES, "n: destinations[0]: Object contains unknown field `frmat`"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(NotificationConfigError) as error:
        parse_notification_config(text.encode(), "n")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert "pw" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotificationConfigError, match=r"none.yaml: cannot be read \(No such file or directory\)"):
        load_notification_config(tmp_path / "none.yaml")


def test_quiet_hours_follow_the_wall_clock_of_their_zone() -> None:
    quiet = "quietHours: {timeZone: Asia/Seoul, windows: [{days: mon-fri, from: '22:00', until: '07:00'}]}"
    config = parse_notification_config((DESTINATION % f", {quiet}" + RULES).encode())
    hours = config.destinations[0].quiet_hours
    assert hours is not None
    assert hours.are_on(datetime(2026, 11, 24, 13, 30, tzinfo=UTC)), "22:30 in Seoul, a Tuesday"
    assert not hours.are_on(datetime(2026, 11, 24, 22, 30, tzinfo=UTC)), "07:30"
    assert not hours.are_on(datetime(2026, 11, 22, 13, 30, tzinfo=UTC)), "a Sunday"


def test_the_file_of_the_guide_can_be_used() -> None:
    guide = (ROOT / "docs/how-to/notifications.md").read_text()
    first_block = guide.partition("```yaml\n")[2].partition("```")[0]
    config = parse_notification_config(first_block.encode(), "the guide")
    assert [destination.name for destination in config.destinations] == ["platform-chat", "audit"]
