"""Every command that a document shows is run by a test, read by the real parser, or listed with why it cannot be run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
import jmespath
import pytest
import typer
from botocore import xform_name
from botocore.model import OperationModel, Shape, StructureShape
from typer.testing import CliRunner

from karpenter.cli.main import app
from support import shell_commands
from support.kubectl_lines import OPTIONS_OF_VERBS
from support.shell_commands import ROOT, ShownCommand

COMMANDS = tuple({(one.text, one.is_inline): one for one in shell_commands.shown_commands()}.values())
#: Commands that another test performs, by the file of that test.
PERFORMED = {
    "files status rack1-01": "tests/unit/providers/test_machines_tutorial.py",
    "files on rack1-01": "tests/unit/providers/test_machines_tutorial.py",
    "files off rack1-01": "tests/unit/providers/test_machines_tutorial.py",
    "mktemp -d": "tests/unit/providers/test_machines_tutorial.py",
    "kubeadm join '${CLUSTER_ENDPOINT_HOSTPORT}' --token '${BOOTSTRAP_TOKEN}' --discovery-token-ca-cert-hash "
    "'sha256:${CA_CERT_HASH}'": "tests/cluster/test_kubeadm.py",
    "curl localhost:8081/readyz": "tests/unit/manager/test_run_process.py",
    "curl -s localhost:8080/metrics": "tests/cluster/test_metrics.py",
}
#: Commands that cannot be run where the tests run, and why.
NOT_HERE = {
    "kind create cluster": "needs a container engine; the control plane of tests/cluster/test_getting_started.py stands for it",
    "docker build -f deploy/Dockerfile -t karpenter:0.1.0 .": "needs a container engine; tests/cluster/test_image.py builds the "
    "same layer",
    "docker buildx build --platform linux/amd64,linux/arm64 -f deploy/Dockerfile -t karpenter:0.1.0 .": "a container engine",
    "kind load docker-image karpenter:0.1.0": "needs a container engine",
    "source SUBSTITUTED": "an interactive shell; tests/unit/cli/test_explain_targets_and_completion.py prints the completion",
}
#: Filters of a reader's shell.
FILTERS = {"grep"}
#: Options of `aws cloudformation deploy`, which the AWS CLI makes of several operations, and of every command.
DEPLOY_OPTIONS = {
    "--stack-name",
    "--template-file",
    "--capabilities",
    "--parameter-overrides",
    "--no-execute-changeset",
}
AWS_OPTIONS = {"--query", "--output", "--region", "--profile"}


def of(*programs: str) -> list[Any]:
    return [pytest.param(one, id=f"{one.page}: {one.text}") for one in COMMANDS if one.program in programs]


CHECKED = ("karpenter", "kubectl", "helm", "make", "aws", "pytest")


def test_no_command_is_in_no_class() -> None:
    """A new command in a page has to be run, to be read by its parser, or to be listed above with a reason."""
    known = {*PERFORMED, *NOT_HERE}
    unknown = {
        f"{one.page}: {one.text}"
        for one in COMMANDS
        if one.program not in (*CHECKED, *FILTERS) and one.text not in known
        # `kubeadm join` in running text is the name of a command
        if not (one.is_inline and len(one.words) == 2)
    }
    assert unknown == set()
    assert {text for text in known if text not in {one.text for one in COMMANDS}} == set()
    assert [test for test in PERFORMED.values() if not (ROOT / test).is_file()] == []


def test_commands_stand_in_blocks_whose_language_says_so() -> None:
    """Blocks of other languages are not read as commands."""
    hidden = [
        f"{page.name}: {line}"
        for page in shell_commands.pages()
        if page.name != "commands.md"  # usage lines of the generated reference
        for language, text in shell_commands.fenced_blocks(page)
        if language in ("", "text", "bash", "shell")
        for line in text.splitlines()
        if re.match(rf" *(?:\$ )?(?:{'|'.join(shell_commands.NAMED)}|docker|kind) [a-z-]", line)
    ]
    assert hidden == []


@pytest.mark.parametrize("command", of("karpenter"))
def test_options_of_karpenter_exist(command: ShownCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_NAME", "shop")  # the guide for AWS exports both
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    _, *words = command.words
    group: Any = typer.main.get_command(app)
    if words[:1] == ["--version"] or words[:1] == ["-h"]:
        return
    chosen = group.commands[words[0]]
    if not command.is_inline and "--help" not in words:
        chosen.make_context(words[0], words[1:])
        return
    known = {name for parameter in chosen.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words[1:] if word.startswith("-")} <= {*known, "--help", "-h"}


@pytest.mark.parametrize("command", of("kubectl"))
def test_options_of_kubectl_exist(command: ShownCommand) -> None:
    """Lines of blocks are done on a real server as well: tests/cluster/test_shown_kubectl_lines.py."""
    _, verb, *words = command.words
    if verb == "karpenter":  # the entry point of the package, as a plug-in
        group: Any = typer.main.get_command(app)
        assert words == ["COMMAND"] or words[0] in group.commands
        return
    options = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    if "--" in words:
        options = {word.partition("=")[0] for word in words[: words.index("--")] if word.startswith("-")}
    if verb in ("-n", "--namespace"):
        verb, options = words[1], options | {"-n"}
    assert verb in OPTIONS_OF_VERBS, command.line
    assert options <= OPTIONS_OF_VERBS[verb], command.line


@pytest.mark.parametrize("command", of("helm"))
def test_a_helm_command_is_one_that_tests_perform(command: ShownCommand) -> None:
    """tests/helm/test_documents.py renders the lines of blocks with Helm; tests/helm/test_release.py installs to uninstalls."""
    _, verb, *words = command.words
    assert verb in ("install", "upgrade", "template", "show", "uninstall", "rollback")
    if verb in ("uninstall", "rollback"):
        assert set(words) <= {"karpenter", "karpenter-crd", "--namespace", "kube-system"}


@pytest.mark.parametrize("command", of("make"))
def test_a_target_of_make_exists(command: ShownCommand) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for name in line.split()}
    target, *more = command.words[1:]
    assert target in targets
    for word in more:
        name, is_assignment, _ = word.partition("=")
        if is_assignment:
            assert re.search(rf"\$[({{]{name}[)}}]|\$\({name}\)|^{name} ", makefile, re.MULTILINE), word
        else:
            assert target == "bench"
            assert word == "NAME" or (ROOT / "bench" / f"{word}.py").is_file()


@pytest.mark.parametrize("command", of("pytest"))
def test_a_folder_of_tests_exists(command: ShownCommand) -> None:
    _, *words = command.words
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).is_dir()] == []
    assert "-m" not in words or words[words.index("-m") + 1] in ("cluster", "soak", "speed")


@pytest.mark.parametrize("command", of("aws"))
def test_a_command_of_the_aws_cli_fits_the_models_of_the_services(command: ShownCommand) -> None:
    """Operation, options, required members, and what is asked of the answer."""
    _, service, operation, *words = command.words
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if (service, operation) == ("cloudformation", "deploy"):
        assert options <= DEPLOY_OPTIONS | AWS_OPTIONS
        assert options >= {"--stack-name", "--template-file"}
        return
    model = operations(service)[operation]
    members = model.input_shape.members if model.input_shape is not None else {}
    known = {f"--{xform_name(name, '-')}": name for name in members}
    assert options <= {*known, *AWS_OPTIONS}
    given = {known[option] for option in options if option in known}
    assert {*model.input_shape.required_members} <= given if model.input_shape is not None else not given
    if "--query" in words:
        asked = set(_fields(jmespath.compile(words[words.index("--query") + 1]).parsed))
        assert asked
        assert asked <= set(_member_names(model.output_shape))


@cache
def operations(service: str) -> Mapping[str, OperationModel]:
    """The operations of a service by their names in the AWS CLI."""
    model = botocore.session.get_session().get_service_model(service)
    return {xform_name(name, "-"): model.operation_model(name) for name in model.operation_names}


def _fields(tree: Any) -> Iterator[str]:
    if tree["type"] == "field":
        yield tree["value"]
    for child in tree.get("children", ()):
        if isinstance(child, dict):
            yield from _fields(child)


def _member_names(shape: Shape | None, depth: int = 6) -> Iterator[str]:
    if isinstance(shape, StructureShape) and depth:
        for name, member in shape.members.items():
            yield name
            yield from _member_names(member, depth - 1)
    elif shape is not None and shape.type_name == "list" and depth:
        yield from _member_names(shape.member, depth - 1)


def test_an_option_that_does_not_exist_is_found() -> None:
    """The checks above can fail."""
    assert "--no-such" not in OPTIONS_OF_VERBS["get"]
    assert CliRunner().invoke(app, ["plan", "--no-such"]).exit_code == 2
    assert "describe-nothing" not in operations("ec2")
