"""Search spaces of ``karpenter tune``: the policies that values make, and what is said of a bad file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from karpenter.simulator.parameter_space import read_space
from karpenter.simulator.workload import WorkloadError


def test_every_value_of_the_packaged_space_makes_a_policy() -> None:
    space = read_space(None)
    assert {"minimum-saving-ratio", "consolidateAfter", "node-fee", "exposure"} <= set(space.parameters)
    first = {name: parameter.edges()[0] for name, parameter in space.parameters.items()}
    policy = space.policy("candidate-1", first)
    assert policy.settings.minimum_node_age == timedelta(0)
    assert policy.file.consolidate_after == "0s"
    assert policy.file.budgets is not None
    assert [budget.nodes for budget in policy.file.budgets] == ["5%"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "parameters:\n  node-fe: {low: 0, high: 1}\n",
            "line 2: node-fe: is no option of `karpenter run` and none of ",
        ),
        ("parameters: {}\n", "line 1: parameters: "),
        ("parameters:\n  node-fee: {low: 2, high: 1}\n", "line 2: node-fee: low 2 is not below high 1"),
        ("parameters:\n  node-fee: {low: 0, high: 1, log: true}\n", "line 2: node-fee: log needs a low above 0"),
        ("parameters:\n  node-fee: {low: 1}\n", "line 2: node-fee: needs either choices, or low and high"),
        ("parameters:\n  budgets: {low: 1, high: 2}\n", "line 2: budgets: takes choices only"),
        ("parameters:\n  consolidateAfter: {choices: [1m, soon]}\n", "line 2: consolidateAfter: "),
        ("parameters:\n  consolidationPolicy: {choices: [WhenEmpty, Often]}\n", "line 2: consolidationPolicy: "),
        ("parameters:\n  packing: {choices: [classic, tight]}\n", "line 2: packing: "),
        ("parameters:\n  exposure: {low: 0, high: 9}\n", "line 2: exposure: "),
        ("parameters:\n  node-fee: {low: 0, high: 1, stepp: 1}\n", "line 2: there is no field 'stepp'"),
    ],
)
def test_a_bad_space_is_refused_with_the_line_before_anything_runs(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_space(file)
    assert str(error.value).startswith(f"{file}: {complaint}")
