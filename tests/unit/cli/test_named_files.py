"""Files that users name and that cannot be used: each command says in one line what is wrong, with which file, and what to do."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from support.manifest_builders import pod, pool

#: Aliases that stand for gigabytes: as lists, and as merged mappings.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + depth)}: &{chr(98 + depth)} [{','.join(['*' + chr(97 + depth)] * 10)}]\n" for depth in range(9)
)
MERGED_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + depth)}: &{chr(98 + depth)} {{<<: [{','.join(['*' + chr(97 + depth)] * 10)}]}}\n" for depth in range(9)
)
POOL = Path(__file__).parents[3] / "examples" / "pool.yaml"
CONTENTS = {
    "not UTF-8": b"kind: \xff\xfe\xfd\n",
    "NUL bytes": b"kind: \0\n",
    "bomb": BOMB.encode(),
    "merged bomb": MERGED_BOMB.encode(),
    "alias in itself": b"a: &a [*a]\n",
    "nested": b"[" * 20_000,
    "no boolean": b"a: !!bool maybe\n",
    "no time": b"a: !!timestamp x\n",
    "no number": b"a: !!int ''\n",
    "empty": b"",
}
FEW = ("not UTF-8", "bomb")
#: Commands that read manifests.
MANIFESTS = [
    "plan -f FILE",
    "plan --diff FILE FILE",
    "explain pod web -f FILE",
    "convert -f FILE",
    "lint -f FILE",
    "doctor --cluster-name c -f FILE",
    "schedule -f FILE",
    "adopt --check -f FILE",
    "budgets np -f FILE",
    "top -f FILE --svg OUT",
    "console -f FILE --port 0",
    "simulate --scenario web -f FILE",
]
#: Commands that read another YAML file.
YAML = [
    "plan --kubeconfig FILE",
    "freeze --kubeconfig FILE",
    "simulate --scenario FILE",
    "simulate --scenario web --world FILE",
    "simulate --scenario web --policy FILE",
    "tune --scenario web --space FILE",
    "run --simulated-faults-file FILE",
    "run --notifications-file FILE",
    "run --kubeconfig FILE",
]
#: Commands that read files of other forms.
OTHERS = [
    "plan -f GOOD --instance-types FILE",
    "lint -f GOOD --instance-types FILE",
    "run --instance-types FILE",
    "simulate --trace FILE",
    "simulate --trace FILE.parquet",
    "replay FILE",
    "savings FILE",
    "top -f GOOD --svg OUT --history FILE",
    "console -f GOOD --port 0 --history FILE",
    "top -f GOOD --svg OUT --controller http://127.0.0.1:9 --controller-token-file FILE",
]
#: Commands that write a file.
WRITING = [
    "plan -f GOOD --record FILE",
    "simulate --scenario web --days 0.01 --html FILE",
    "demo --svg FILE",
    "demo --log FILE",
    "run --log-output-paths FILE",
    "top -f GOOD --svg FILE",
]
#: Words of Python, of its libraries, and of programs that failed.
JARGON = re.compile(r"Errno|Traceback|codec|byte string|unicode string|Error\(|recursion depth|<.*object at")


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """What hangs fails."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Refused = Callable[[str, Path], str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """The one line with which a command refuses a file."""
    good = tmp_path / "good.yaml"
    good.write_text(yaml.safe_dump_all([pool(), pod()]))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "300")

    def run(line: str, file: Path) -> str:
        words = {"FILE": str(file), "GOOD": str(good), "OUT": str(tmp_path / "out.svg")}
        with at_most(20):
            result = CliRunner().invoke(app, [words.get(word, word) for word in shlex.split(line)])
        return said(result, str(file))

    return run


def said(result: Result, file: str) -> str:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    lines = [line for line in (result.stdout + result.stderr).splitlines() if file in line]
    assert len(lines) == 1, result.stdout + result.stderr
    assert not JARGON.search(result.stdout + result.stderr), result.stdout + result.stderr
    return lines[0]


def placed(tmp_path: Path, line: str, name: str) -> tuple[str, Path]:
    """The command, and the file it names, which has an ending where the command says so."""
    return line.replace("FILE.parquet", "FILE"), tmp_path / f"{name}{'.parquet' if 'parquet' in line else '.yaml'}"


@pytest.mark.parametrize("line", [*MANIFESTS, *YAML, *OTHERS])
def test_a_file_that_cannot_be_opened_is_named_with_the_reason(refused: Refused, tmp_path: Path, line: str) -> None:
    """As they are in practice: a wrong name, a directory, a link in a circle, a name below a file."""
    line, missing = placed(tmp_path, line, "missing")
    assert re.search(r"No such file|no such file|there is no", refused(line, missing))
    _, directory = placed(tmp_path, line, "directory")
    directory.mkdir()
    assert re.search(r"Is a directory|is a directory|no manifests in it", refused(line, directory))
    _, loop = placed(tmp_path, line, "loop")
    loop.symlink_to(loop)
    refused(line, loop)
    _, below = placed(tmp_path / "good.yaml", line, "below")
    refused(line, below)


def cases(*lines: str) -> list[object]:
    """Each command with each content; `make test` tries all contents with the first command, and two of them with the others."""
    return [
        pytest.param(line, content, marks=() if line == lines[0] or content in FEW else pytest.mark.soak)
        for line in lines
        for content in CONTENTS
        # lint passes over empty files of a folder; convert says of all files together that there is nothing to convert.
        if content != "empty" or not line.startswith(("lint", "convert"))
    ]


@pytest.mark.parametrize(("line", "content"), [*cases(*MANIFESTS), *cases(*YAML)])
def test_yaml_that_cannot_be_read_is_refused_at_once(refused: Refused, tmp_path: Path, line: str, content: str) -> None:
    """Not text, empty, nested too deeply, or of aliases that stand for gigabytes."""
    file = tmp_path / "file.yaml"
    file.write_bytes(CONTENTS[content])
    told = refused(line, file)
    if "bomb" in content:
        assert "its aliases make" in told
    if content == "alias in itself":
        assert "an alias stands inside what it stands for" in told


@pytest.mark.parametrize(("line", "content"), cases(*OTHERS))
def test_another_file_that_cannot_be_read_is_refused_at_once(
    refused: Refused, tmp_path: Path, line: str, content: str
) -> None:
    line, file = placed(tmp_path, line, "file")
    if "token" in line and content not in ("bomb", "merged bomb", "NUL bytes", "empty"):
        content = "not UTF-8"  # one line of plain characters may be a token
    file.write_bytes(CONTENTS[content])
    refused(line, file)


@pytest.mark.parametrize("line", WRITING)
def test_a_file_that_cannot_be_written_is_named_with_the_reason(refused: Refused, tmp_path: Path, line: str) -> None:
    assert re.search(r"cannot be written|is no directory", refused(line, tmp_path / "missing" / "file"))
    (tmp_path / "directory").mkdir()
    refused(line, tmp_path / "directory")


@pytest.mark.parametrize("text", [BOMB, MERGED_BOMB, "a: &a [*a]", "[" * 20_000])
def test_a_scheduler_configuration_of_aliases_is_refused_at_once(refused: Refused, text: str) -> None:
    with at_most(20):
        result = CliRunner().invoke(app, ["plan", "--scheduler-config", text])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "not YAML" in result.stderr


@pytest.mark.parametrize(
    "command",
    ["adopt --check", "budgets general", "console", "explain pod/web", "plan", "schedule", "top --svg /dev/null"],
)
@pytest.mark.parametrize("flag", ["--kubeconfig", "--context"])
def test_a_flag_that_names_a_cluster_is_refused_beside_files_that_stand_in_its_place(command: str, flag: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "-f", str(POOL), flag, "gone"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f": -f reads files in place of a cluster, so {flag} has no use beside it\n")


def test_a_variable_that_names_a_cluster_stands_there_for_other_commands() -> None:
    result = CliRunner().invoke(app, ["plan", "-f", str(POOL)], env={"KUBECONFIG": "/gone"})
    assert result.exit_code == 0


@pytest.mark.parametrize("command", ["plan", "freeze", "wake general --for 1h", "simulate --from-cluster"])
def test_a_context_that_is_not_there_is_wrong_input(command: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{contexts: [{name: dev, context: {cluster: a, user: a}}]}")
    result = CliRunner().invoke(app, [*command.split(), "--context", "nope"], env={"KUBECONFIG": str(config)})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "context 'nope' not found; choose dev" in result.stderr


def test_a_kubeconfig_that_is_not_there_says_how_to_choose_one(refused: Refused) -> None:
    assert refused("plan --kubeconfig FILE", Path("/nowhere")) == (
        "cannot read kubeconfig /nowhere: No such file or directory; choose a kubeconfig with --kubeconfig or KUBECONFIG"
    )
