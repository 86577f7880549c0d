"""Settings: where they come from and what is refused (OPS §4.1, §4.2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.control.settings import SETTINGS, SettingError, Settings, environment_name, flag_name, resolve


def test_without_anything_every_setting_has_its_default() -> None:
    """O1"""
    assert resolve({}, {}) == Settings()
    found = resolve({}, {}).described()
    assert (found["batch_max_duration"], found["batch_idle_duration"]) == ("0:00:10", "0:00:01")
    assert (found["kube_client_qps"], found["kube_client_burst"], found["health_probe_port"]) == ("200", "300", "8081")


def test_a_flag_wins_over_the_environment() -> None:
    """O2, OPS-300"""
    environment = {"BATCH_MAX_DURATION": "30s"}
    assert resolve({}, environment).batch_max_duration == timedelta(seconds=30)
    assert resolve({"batch_max_duration": "20s"}, environment).batch_max_duration == timedelta(seconds=20)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_has_a_flag_and_a_variable(name: str) -> None:
    """OPS-300"""
    assert flag_name(name).startswith("--")
    assert "_" not in flag_name(name)
    assert environment_name(name) == name.upper()
    assert hasattr(Settings(), name)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOG_LEVEL", "trace"),
        ("PREFERENCE_POLICY", "x"),
        ("MIN_VALUES_POLICY", "x"),
        ("BATCH_MAX_DURATION", "soon"),
        ("BATCH_IDLE_DURATION", "-1s"),
        ("KUBE_CLIENT_QPS", "many"),
        ("KUBE_CLIENT_BURST", "0"),
        ("HEALTH_PROBE_PORT", "99999"),
        ("NOMINATE_PODS", "yes"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_name(variable: str, value: str) -> None:
    """O3, OPS-304: one line that names variable and value and says what is expected."""
    with pytest.raises(SettingError) as refused:
        resolve({}, {variable: value})
    text = str(refused.value)
    assert text.startswith(f"{variable}={value!r} is not ")
    assert "\n" not in text


def test_a_bad_flag_is_refused_by_its_own_name() -> None:
    with pytest.raises(SettingError, match=r"^--log-level='loud' is not debug, info or error$"):
        resolve({"log_level": "loud"}, {"LOG_LEVEL": "debug"})


@pytest.mark.parametrize(("text", "seconds"), [("1m30s", 90), ("500ms", 0.5), ("0s", 0)])
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    """OPS-302"""
    assert resolve({}, {"BATCH_IDLE_DURATION": text}).batch_idle_duration == timedelta(seconds=seconds)


def test_an_empty_log_level_means_the_default() -> None:
    """OPS-303"""
    assert resolve({}, {"LOG_LEVEL": ""}).log_level == "info"
