"""The shown part of an instance's console output: its end, limited in size, without secrets (AWS-932)."""

from __future__ import annotations

import pytest

from karpenter.providers.aws.instance.console_output import MASK, MAX_TAIL_LENGTH, masked, masked_tail

_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAbC=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kubeadm join 10.0.0.1:6443 --token abc123.0123456789abcdef", "kubeadm join 10.0.0.1:6443 --token [masked]"),
        ("BOOTSTRAP_TOKEN=abc123.0123456789abcdef;", "BOOTSTRAP_TOKEN=[masked]"),
        ("token: 'abc123.0123456789abcdef'", "token: [masked]'"),
        ("{abc123.0123456789abcdef}", "{[masked]}"),
        ("--certificate-key 0123456789abcdef next", "--certificate-key [masked] next"),
        ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "export AWS_SECRET_ACCESS_KEY=[masked]"),
        ("found AKIAIOSFODNN7EXAMPLE here", "found [masked] here"),
        ("Authorization: Bearer eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "Authorization: Bearer [masked]"),
        ("db_password = hunter2", "db_password = [masked]"),
        ("client-key-data: LS0tLS1CRUdJTg==", "client-key-data: [masked]"),
        (f"key\n{_PEM}\nend", "key\n[masked]\nend"),
        (_PEM.partition("-----END")[0], "[masked]"),
        ("H4sIAAAAAAAAA0tMSk4xNDI2MTUzt7BMTElNS08AAAD" * 2, "[masked]"),
    ],
)
def test_text_that_looks_like_a_secret_is_masked(text: str, shown: str) -> None:
    """AWS-913, AWS-932."""
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--discovery-token-ca-cert-hash sha256:" + "0a" * 32,
        "error: couldn't validate the identity of the API Server: cluster CA found in cluster-info ConfigMap is invalid",
        'could not find a JWS signature in the cluster-info ConfigMap for token ID "abc123"',
        "dial tcp 10.0.0.10:6443: connect: no route to host",
        "/var/lib/cloud/instances/i-0123456789abcdef0/scripts/part-001: line 5: kubeadm: command not found",
        "ip-10-0-1-1.eu-west-1.compute.internal login:",
    ],
)
def test_text_that_explains_a_failed_join_is_kept(text: str) -> None:
    assert masked(text) == text


def test_the_tail_is_bounded_and_made_of_whole_lines() -> None:
    tail = masked_tail("\n".join(f"line {number} {'x' * 20}" for number in range(5000)))
    assert len(tail) <= MAX_TAIL_LENGTH
    assert tail.splitlines()[-1].startswith("line 4999 ")
    assert tail.splitlines()[0].startswith("line 4")


def test_one_endless_line_is_cut() -> None:
    assert 0 < len(masked_tail("last words " * 5000 + "\n" + "last words " * 500)) <= MAX_TAIL_LENGTH


def test_terminal_codes_do_not_hide_a_secret() -> None:
    """A token with colour codes or control characters is still masked."""
    assert masked_tail("\x1b[0;32mabc123.\x1b[1m0123456789\x00abcdef\x1b[0m\r\n") == MASK


def test_a_secret_at_the_start_of_the_searched_text_is_not_shown() -> None:
    text = "-----BEGIN PRIVATE KEY-----\n" + "AbC1" * 16 + "\n"
    assert "AbC1" not in masked_tail(text * 2000)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit", ["a", "a/", "token", "--a-", "-----BEGIN PRIVATE KEY-----", "eyJaaaa.", "\x1b[", "token:\t"]
)
def test_hostile_output_is_processed_in_milliseconds(unit: str) -> None:
    """Foreign text of 64 KiB takes milliseconds; a quadratic pattern would take minutes."""
    assert len(masked_tail(unit * (70_000 // len(unit)))) <= MAX_TAIL_LENGTH
