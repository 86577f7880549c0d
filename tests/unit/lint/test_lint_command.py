"""The command: formats, exit codes, suppressions, what it passes over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from karpenter.lint.rule_page import read_example
from karpenter.lint.rules import RULES

ROOT = Path(__file__).resolve().parents[3]
BY_ID = {rule.id: rule for rule in RULES}
CLASS = read_example(BY_ID["KL304"]).bad
Lint = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An EC2NodeClass with one warning."""
    path = tmp_path / "class.yaml"
    path.write_text(CLASS)
    return path


def test_a_line_names_file_line_severity_rule_object_field_and_what_is_wrong(lint: Lint, file: Path) -> None:
    result = lint("-f", file)
    assert result.exit_code == 0
    first, summary = result.stdout.splitlines()
    assert first.startswith(
        f"{file}:7: warning KL304 latest-image: EC2NodeClass default: spec.amiSelectorTerms[0].alias: "
    )
    assert summary == "1 warning"


@pytest.mark.parametrize(
    ("fail_on", "exit_code"), [("error", 0), ("warning", 1), ("note", 1)], ids=lambda value: str(value)
)
def test_the_exit_code_is_1_from_the_severity_of_fail_on_up(
    lint: Lint, file: Path, fail_on: str, exit_code: int
) -> None:
    assert lint("-f", file, "--fail-on", fail_on).exit_code == exit_code


def test_json_has_a_member_for_each_finding(lint: Lint, file: Path) -> None:
    found = json.loads(lint("-f", file, "-o", "json").stdout)["findings"]
    assert [(each["rule"], each["line"], each["object"], each["path"]) for each in found] == [
        ("KL304", 7, "EC2NodeClass default", "spec.amiSelectorTerms[0].alias")
    ]


def test_sarif_points_to_the_rule_and_to_a_place_relative_to_the_working_directory(
    lint: Lint, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    log = json.loads(lint("-f", file, "-o", "sarif").stdout)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0"
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (rule["id"], result["ruleId"], result["level"]) == ("KL304", "KL304", "warning")
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "class.yaml"}, "region": {"startLine": 7, "endLine": 7}}
    assert {rule["defaultConfiguration"]["level"] for rule in run["tool"]["driver"]["rules"]} == {
        "error",
        "warning",
        "note",
    }


def test_sarif_without_findings_has_an_empty_list_of_results(lint: Lint, tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(read_example(BY_ID["KL304"]).good)
    assert json.loads(lint("-f", good, "-o", "sarif").stdout)["runs"][0]["results"] == []


def test_markdown_is_a_table_with_bars_escaped(lint: Lint, tmp_path: Path) -> None:
    odd = tmp_path / "odd.yaml"
    odd.write_text(CLASS.replace("{karpenter.sh/discovery: shop}", '{"a|b": "*"}'))
    lines = lint("-f", odd, "-o", "markdown").stdout.splitlines()
    assert lines[2:4] == ["| severity | rule | place | finding |", "|---|---|---|---|"]
    assert any("KL301" in line and "a\\|b" in line for line in lines)


def test_stdin_is_read(lint: Lint) -> None:
    assert lint("-f", "-", stdin=CLASS).stdout.startswith("stdin:7: warning KL304")


def test_a_rule_is_left_out_by_id_or_name(lint: Lint, file: Path) -> None:
    for ignored in ("KL304", "latest-image", "kl201, KL304"):
        assert lint("-f", file, "--ignore", ignored).stdout == "no findings\n"


def test_an_unknown_rule_is_wrong_input(lint: Lint, file: Path) -> None:
    result = lint("-f", file, "--ignore", "KL999")
    assert (result.exit_code, "there is no rule KL999" in result.stderr) == (2, True)


def test_without_files_the_command_says_what_it_needs(lint: Lint) -> None:
    result = lint()
    assert (result.exit_code, result.stderr) == (2, "lint needs -f FILE; use -f - for standard input\n")


def test_a_file_that_is_not_there_is_wrong_input(lint: Lint, tmp_path: Path) -> None:
    result = lint("-f", tmp_path / "none.yaml")
    assert (result.exit_code, "none.yaml: cannot be read" in result.stderr) == (2, True)


def test_explain_prints_a_rule_with_both_examples(lint: Lint) -> None:
    page = lint("--explain", "kl304").stdout
    assert page.startswith("# KL304 latest-image\n")
    assert "al2023@latest  # finding" in page
    assert "Without the finding" in page


# -- suppressions ---------------------------------------------------------------------------------------------------------


def _with_annotation(value: str) -> str:
    return CLASS.replace("{name: default}", f'{{name: default, annotations: {{karpenter.sh/lint-ignore: "{value}"}}}}')


@pytest.mark.parametrize(
    ("text", "is_suppressed"),
    [
        (_with_annotation("KL304"), True),
        (_with_annotation("KL201, KL304"), True),
        (_with_annotation("*"), True),
        (_with_annotation("KL201"), False),
        (CLASS.replace("# finding", "# karpenter.sh/lint-ignore: KL304"), True),
        (CLASS.replace("# finding", "# tested first; karpenter.sh/lint-ignore: KL304 since June"), True),
        (CLASS.replace("# finding", "# karpenter.sh/lint-ignore: KL201"), False),
        (CLASS.replace("  amiSelectorTerms:", "  # karpenter.sh/lint-ignore: KL304\n  amiSelectorTerms:"), True),
        (CLASS.replace("  role:", "  # karpenter.sh/lint-ignore: KL304\n  role:"), False),
        (f"# karpenter.sh/lint-ignore: KL304\n{CLASS}", True),
        (CLASS.replace("alias: al2023@latest", 'alias: "al2023@latest"  # karpenter.sh/lint-ignore: *'), True),
        (CLASS.replace("role: KarpenterNodeRole-shop", 'role: "# karpenter.sh/lint-ignore: *"'), False),
    ],
    ids=[
        "an annotation",
        "an annotation with several",
        "an annotation with all",
        "an annotation with another",
        "a comment at the end of the line",
        "a comment with words",
        "a comment with another rule",
        "a comment above the field around it",
        "a comment above another field",
        "a comment above the object",
        "a comment with all",
        "a text that looks like a comment",
    ],
)
def test_a_finding_is_suppressed_where_the_file_says_so(
    lint: Lint, tmp_path: Path, text: str, is_suppressed: bool
) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(text)
    output = lint("-f", path).stdout
    assert ("KL304" not in output, "(1 suppressed)" in output) == (is_suppressed, is_suppressed)


# -- what is read -----------------------------------------------------------------------------------------------------------


def test_in_a_list_findings_have_the_lines_of_their_items(lint: Lint, tmp_path: Path) -> None:
    indented = "".join(f"  {line}\n" for line in CLASS.splitlines())
    path = tmp_path / "list.yaml"
    path.write_text(f"apiVersion: v1\nkind: List\nitems:\n- {indented.removeprefix('  ')}")
    assert lint("-f", path).stdout.startswith(f"{path}:10: warning KL304")


def test_json_files_have_lines_too(lint: Lint, tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "class.json"
    path.write_text(json.dumps(yaml.safe_load(CLASS), indent=2))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "latest" in text)
    assert lint("-f", path).stdout.startswith(f"{path}:{line}: warning KL304")


def test_documents_that_are_no_objects_are_passed_over(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 2\n---\nreplicas: 3\n")
    (tmp_path / "kustomization.yaml").write_text("resources: [class.yaml]\n")
    (tmp_path / "class.yaml").write_text(CLASS)
    result = lint("-f", tmp_path)
    assert (result.exit_code, result.stdout.count("\n")) == (0, 2)
    assert "values.yaml: 2 documents that are neither" in result.stderr
    assert "kustomization.yaml: is a kustomization" in result.stderr


def test_one_document_that_is_no_object_is_passed_over_in_the_singular(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 2\n")
    assert "values.yaml: 1 document that is neither an object" in lint("-f", tmp_path).stderr


@pytest.mark.parametrize("text", ["", "# nothing yet\n---\n"])
def test_a_file_without_objects_is_named(lint: Lint, tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.yaml").write_text(text)
    assert "empty.yaml: no objects in it" in lint("-f", tmp_path).stderr


@pytest.mark.parametrize("text", ["", "replicas: 2\n"])
def test_an_input_with_nothing_to_check_is_wrong_input_and_not_a_file_without_findings(lint: Lint, text: str) -> None:
    result = lint("-f", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (2, "")
    said = "nothing to check in stdin: expected objects of Kubernetes, dashboards or alert rules as YAML or JSON"
    assert result.stderr.splitlines()[-1] == said


def test_an_object_that_does_not_decode_is_a_finding_and_keeps_no_other_rule_from_running(
    lint: Lint, tmp_path: Path
) -> None:
    path = tmp_path / "both.yaml"
    path.write_text(f"{read_example(BY_ID['KL002']).bad}---\n{CLASS}")
    output = lint("-f", path).stdout
    assert "error KL002 invalid-object: NodePool web: spec.disruption.consolidateAfter" in output
    assert "warning KL304" in output


def test_pools_of_several_regions_are_each_looked_at_in_their_own(lint: Lint, tmp_path: Path) -> None:
    pool = read_example(BY_ID["KL210"]).good
    path = tmp_path / "pools.yaml"
    zones = "[us-east-1a, us-east-1b, us-east-1c]"
    other = pool.replace(zones, "[eu-central-1a, eu-central-1b]").replace("name: web", "name: web-eu")
    path.write_text(f"{pool}---\n{other}")
    output = lint("-f", path, "--fail-on", "warning")
    assert output.exit_code == 0, output.output


# -- what we ship ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_our_examples_have_no_findings(lint: Lint, path: Path) -> None:
    result = lint("-f", path, "--fail-on", "note")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("folder", ["dashboards", "alerts"])
def test_our_dashboards_and_alerts_name_only_what_exists(lint: Lint, folder: str) -> None:
    result = lint("-f", ROOT / "charts" / "karpenter" / folder, "--fail-on", "note")
    assert result.exit_code == 0, result.output
