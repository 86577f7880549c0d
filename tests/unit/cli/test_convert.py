"""``karpenter convert``: what it reads, what it writes where, and how it exits (API §17.1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.api.plain_yaml import to_yaml
from karpenter.cli.main import app
from karpenter.cli.manifest_yaml import manifests_yaml
from karpenter.conversion.json_fields import Json
from support.older_manifests import beta_pool, manifest, node_template, provisioner

Write = Callable[..., Path]


def convert(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], input=stdin, catch_exceptions=False)


def kinds_of(result: Result) -> list[str]:
    return [content["kind"] for content in yaml.safe_load_all(result.stdout)]


def test_nothing_to_read_is_a_usage_error() -> None:
    """API-815, API-818."""
    result = convert()
    assert (result.exit_code, result.stderr) == (2, "convert needs -f FILE; use -f - for standard input\n")


def test_role_and_profile_together_are_a_usage_error(written: Write) -> None:
    """API-815."""
    file = written("a.json", provisioner())
    assert convert("-f", file, "--node-role", "a", "--instance-profile", "b").exit_code == 2


def test_lists_files_and_directories_are_read(written: Write, tmp_path: Path) -> None:
    """API-816: lists, several files; directories below only with -R."""
    written("a.json", provisioner(), beta_pool())
    written("below/b.json", node_template())
    assert kinds_of(convert("-f", tmp_path)) == ["NodePool", "NodePool"]
    assert kinds_of(convert("-f", tmp_path, "-R")) == ["NodePool", "NodePool", "EC2NodeClass"]


def test_items_of_a_typed_list_have_its_kind() -> None:
    """API-816."""
    pools = {"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePoolList", "items": [{"metadata": {"name": "a"}}]}
    assert kinds_of(convert("-f", "-", stdin=json.dumps(pools))) == ["NodePool"]


def test_json_output_is_one_list(written: Write) -> None:
    """API-817."""
    output = json.loads(convert("-f", written("a.json", provisioner()), "-o", "json").stdout)
    assert (output["kind"], [item["kind"] for item in output["items"]]) == ("List", ["NodePool"])


def test_messages_name_file_document_object_and_field(written: Write) -> None:
    """API-818."""
    file = written("a.json", provisioner({"weigth": 5}))
    (warning,) = (line for line in convert("-f", file).stderr.splitlines() if line.startswith("WARN"))
    assert warning == (
        f"WARN {file}:1 Provisioner/shop spec.weigth: unknown field 'weigth' is dropped; did you mean 'weight'?"
    )


def test_strict_writes_nothing_after_a_warning(written: Write) -> None:
    """API-818: information does not count."""
    assert convert("-f", written("good.json", provisioner()), "--strict").exit_code == 0
    result = convert("-f", written("bad.json", provisioner({"weigth": 5})), "--strict")
    assert (result.exit_code, result.stdout) == (1, "")


def test_an_object_that_cannot_be_converted_does_not_stop_the_others(written: Write) -> None:
    """API-818, API-S292, API-S282."""
    file = written("a.json", node_template({"launchTemplate": "old"}), provisioner())
    result = convert("-f", file)
    assert (result.exit_code, kinds_of(result)) == (1, ["NodePool"])
    assert 'spec.launchTemplate: cannot convert with "spec.launchTemplate"' in result.stderr


def test_a_kind_of_karpenter_in_a_version_that_never_had_it_is_an_error_and_not_skipped(written: Write) -> None:
    """API-818."""
    misversioned = {**provisioner(), "apiVersion": "karpenter.sh/v1beta1"}
    result = convert("-f", written("a.json", misversioned, beta_pool()))
    assert (result.exit_code, kinds_of(result)) == (1, ["NodePool"])
    assert "apiVersion: karpenter.sh/v1beta1 has no Provisioner; expected karpenter.sh/v1alpha5" in result.stderr


def test_a_kind_of_the_same_name_in_another_group_is_skipped(written: Write) -> None:
    """API-816."""
    result = convert("-f", written("a.json", {**provisioner(), "apiVersion": "example.com/v1beta1"}, beta_pool()))
    assert (result.exit_code, kinds_of(result)) == (0, ["NodePool"])


def test_a_document_that_is_no_yaml_does_not_stop_other_files(written: Write) -> None:
    """API-818, API-S292."""
    result = convert("-f", written("bad.yaml", "a: [1\n"), "-f", written("good.json", provisioner()))
    assert (result.exit_code, kinds_of(result)) == (1, ["NodePool"])
    assert result.stderr.startswith("ERROR ")


def test_a_template_is_to_be_rendered_first() -> None:
    text = "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata:\n  name: {{ .Values.name }}\n"
    result = convert("-f", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "; it has template marks ({{): render it first, for example with helm template" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata:\nname: default\nspec:\nproviderRef:\n",
        "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nspec:\nrequirements:\n- key: a\noperator: In\n- values\n",
    ],
)
def test_lost_indentation_is_named(text: str) -> None:
    """API-839."""
    result = convert("-f", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "stdin: document 1: line" in result.stderr
    assert "its indentation is lost" in result.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{kind: NodePool\nmetadata: {name: a}}\n", "line 2, column 9"),
        ("kind: NodePool\nmetadata: {name: a\nspec: {}\n", "line 3, column 5"),
    ],
)
def test_a_bracket_that_is_not_closed_is_named_with_its_line_and_no_indentation_is_missed(
    text: str, place: str
) -> None:
    """API-839: flow style needs none."""
    result = convert("-f", "-", stdin=text)
    opened = "line 1, column 1" if text.startswith("{") else "line 2, column 11"
    assert result.stderr == (
        f"ERROR stdin: document 1: {place}: malformed YAML (did not find expected ',' or '}}' for the bracket in {opened}); "
        "expected Kubernetes objects as YAML or JSON\n"
    )
    assert (result.exit_code, result.stdout) == (1, "")


KINDS_TAKEN = "convert takes Provisioner, Machine, AWSNodeTemplate, NodePool, NodeClaim and EC2NodeClass\n"
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        ([], "no objects in the input; "),
        ([CONFIG], "the object of the input is not of a kind that is converted; "),
        ([CONFIG, {}], "none of the 2 objects of the input is of a kind that is converted; "),
    ],
)
@pytest.mark.parametrize("output", ["yaml", "json"])
def test_an_input_with_nothing_to_convert_is_wrong_and_the_kinds_that_are_converted_are_named(
    contents: list[Json], line: str, output: str
) -> None:
    """API-818, API-S286."""
    result = convert("-f", "-", "-o", output, stdin=yaml.safe_dump_all(contents))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines(keepends=True)[-1] == line + KINDS_TAKEN


def test_an_error_about_a_document_that_is_no_object_names_what_it_lacks() -> None:
    """API-818."""
    result = convert("-f", "-", stdin="replicas: 2\n")
    assert result.stderr.splitlines()[0] == (
        "WARN stdin:1: skipped: kind is missing; expected a Kubernetes object with apiVersion and kind"
    )


def test_objects_that_are_only_passed_on_are_a_result(written: Write) -> None:
    """API-816."""
    result = convert("-f", written("a.json", CONFIG), "--keep-others")
    assert (result.exit_code, list(yaml.safe_load_all(result.stdout)), result.stderr) == (0, [CONFIG], "")


def test_a_named_file_that_cannot_be_read_is_wrong_and_nothing_is_written(written: Write, tmp_path: Path) -> None:
    result = convert("-f", written("good.json", provisioner()), "-f", tmp_path / "gone.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{tmp_path / 'gone.yaml'}: cannot be read (No such file or directory)")


def test_a_kustomization_in_a_directory_is_passed_over(written: Write, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [a.json]\n")
    written("a.json", provisioner())
    result = convert("-f", tmp_path)
    assert (result.exit_code, kinds_of(result)) == (0, ["NodePool"])
    assert f"render it: kubectl kustomize {tmp_path} | karpenter convert -f -" in result.stderr


@pytest.mark.parametrize(
    ("content", "path", "meant"),
    [
        (beta_pool({"requirments": [], "requirements": None}), "spec.template.spec.requirments", "requirements"),
        ({**beta_pool(), "apiVersion": "karpenter.sh/v1", "specs": {}, "spec": None}, "specs", "spec"),
        (manifest("karpenter.sh/v1", "NodePool", {"Template": {}}), "spec.Template", "template"),
        (
            manifest("karpenter.sh/v1", "NodePool", {"template": {"spec": {"nodeclassRef": {"name": "a"}}}}),
            "spec.template.spec.nodeclassRef",
            "nodeClassRef",
        ),
        (
            manifest("karpenter.sh/v1alpha5", "Provisioner", {"providerref": {"name": "a"}}),
            "spec.providerref",
            "providerRef",
        ),
        (manifest("karpenter.sh/v1beta1", "NodeClaim", {"requirement": []}), "spec.requirement", "requirements"),
    ],
)
def test_a_misspelt_field_that_would_leave_a_needed_one_empty_is_an_error(
    written: Write, content: Json, path: str, meant: str
) -> None:
    """API-836: a NodePool without its requirements would launch any instance type."""
    result = convert("-f", written("a.json", content))
    said = f"{path}: unknown field {path.rpartition('.')[2]!r}, and {meant!r} is missing; did you mean {meant!r}?\n"
    assert (result.exit_code, kinds_of(result)) == (1, [])
    assert result.stderr.startswith("ERROR ")
    assert result.stderr.endswith(said)


def test_a_misspelt_field_beside_the_one_that_was_meant_is_dropped_with_a_warning(written: Write) -> None:
    """API-836."""
    result = convert("-f", written("a.json", beta_pool({"requirments": [], "requirements": []})))
    assert (result.exit_code, kinds_of(result)) == (0, ["NodePool"])
    assert "WARN" in result.stderr


def test_the_last_of_two_values_is_taken() -> None:
    """API-829: lists of taints are joined, other values are not."""
    content = yaml.safe_dump(provisioner({"weight": 1})) + "  weight: 2\n  taints: [{key: a, effect: NoSchedule}]\n"
    result = convert("-f", "-", stdin=content + "  taints: [{key: b, effect: NoSchedule}]\n")
    (pool,) = yaml.safe_load_all(result.stdout)
    assert pool["spec"]["weight"] == 2
    assert [taint["key"] for taint in pool["spec"]["template"]["spec"]["taints"]] == ["a", "b"]
    assert result.stderr.count("stands twice") == 2


def test_keys_given_twice_in_json_are_merged_alike() -> None:
    """API-829."""
    text = json.dumps(provisioner())[:-2] + ', "taints": [{"key": "a", "effect": "NoSchedule"}]'
    result = convert("-f", "-", stdin=text + ', "taints": [{"key": "b", "effect": "NoSchedule"}]}}')
    (pool,) = yaml.safe_load_all(result.stdout)
    assert [taint["key"] for taint in pool["spec"]["template"]["spec"]["taints"]] == ["a", "b"]
    assert "WARN stdin:1 Provisioner/shop taints: key 'taints' stands twice" in result.stderr


def test_the_fields_of_a_converted_file_keep_their_order_when_it_is_converted_again() -> None:
    """API-819."""
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    older = provisioner({"taints": [taint], "startupTaints": [taint]})
    first = convert("-f", "-", stdin=json.dumps(older)).stdout
    assert convert("-f", "-", stdin=first).stdout == first


def test_other_objects_pass_on_request(written: Write) -> None:
    """API-816."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"b": "c"}}
    file = written("a.json", provisioner(), config)
    result = convert("-f", file, "--keep-others")
    assert list(yaml.safe_load_all(result.stdout))[1] == config
    assert "WARN" not in result.stderr
    assert kinds_of(convert("-f", file)) == ["NodePool"]


@pytest.mark.parametrize(
    "text", ["no", "1e3", "0o17", "0x1F", "12_000", "1.5", "720", "-3", "2024-01-01", "null", "~", "1:30", "y", "N"]
)
def test_text_is_quoted_where_a_reader_takes_it_for_something_else(text: str) -> None:
    """API-817, API-830."""
    assert manifests_yaml([{"a": text}])[3] in "'\""
    assert manifests_yaml([{text: "a"}])[0] in "'\""
    assert to_yaml({"a": text})[3] in "'\""


@pytest.mark.parametrize("text", ["30Gi", "720h", "10%", "m5.large", "a", "${ROLE}"])
def test_plain_text_is_not_quoted(text: str) -> None:
    """API-817."""
    assert manifests_yaml([{"a": text}]) == f"a: {text}\n"
