"""Limits that Karpenter's performance suite asserts, and what its reports say was measured."""

from __future__ import annotations

from conformance.performance import Limit, figures_table, limits_by_spec, measurements, suite_environment

_SOURCE = """
    It("scales two deployments", func() {
        Expect(scaleOutReport.TotalPods).To(Equal(1000), "pods")
        Expect(scaleOutReport.TotalTime).To(BeNumerically("<", TotalTimeThreshold("basic/scaleOut", 2*time.Minute)),
        Expect(scaleOutReport.TotalReservedCPUUtil).To(BeNumerically(">", CPUUtilThreshold("basic/scaleOut", 0.53)),
        Expect(consolidationReport.KarpenterP95HeapMB).To(BeNumerically("<", HeapThreshold("basic/consolidation", 140)),
    })
    It("scales thirty", func() {
        Expect(scaleOutReport.KarpenterAvgCPUCores).To(BeNumerically("<", CPUThreshold("wide/scaleOut", 0.70)),
    })
"""
_OUTPUT = """
=== scale-out PERFORMANCE REPORT ===
Total Time: 1m30.5s
CPU Utilization: 61.20%
Karpenter Memory (P95/Avg/Max): 240.10 / 230.00 / 250.00 MB (12 samples)
Karpenter Heap (P95/Avg/Max): 140.10 / 130.00 / 150.00 MB (12 samples)
=== consolidation PERFORMANCE REPORT ===
Total Time: 250ms
Karpenter Metrics: Not available (0 samples collected)
"""


def test_limits_are_read_from_the_sources_by_spec_and_phase() -> None:
    assert limits_by_spec([_SOURCE, "no spec here"]) == {
        "scales two deployments": [
            Limit("basic/scaleOut", "scaleOut", "TotalTime", "<", 2.0),
            Limit("basic/scaleOut", "scaleOut", "TotalReservedCPUUtil", ">", 53.0),
            Limit("basic/consolidation", "consolidation", "KarpenterP95HeapMB", "<", 240.0),
        ],
        "scales thirty": [Limit("wide/scaleOut", "scaleOut", "KarpenterAvgCPUCores", "<", 0.7)],
    }


def test_a_report_gives_its_figures_and_none_that_it_lacks() -> None:
    scale_out, consolidation = measurements(_OUTPUT)
    assert scale_out.figures == {
        "TotalTime": 1.5 + 0.5 / 60,
        "TotalReservedCPUUtil": 61.2,
        "KarpenterP95HeapMB": 140.1,
    }
    assert consolidation.figures == {"TotalTime": 0.25 / 60}


def test_the_table_says_what_was_not_measured() -> None:
    rows = figures_table(limits_by_spec([_SOURCE]), {"scales two deployments": measurements(_OUTPUT)}).splitlines()
    assert rows[2:] == [
        "| scales two deployments | scaleOut | time | < 2 min | 1.51 min |",
        "| scales two deployments | scaleOut | CPU requested | > 53 % | 61.20 % |",
        "| scales two deployments | consolidation | controller memory, 95th percentile | < 240 MB | not measured |",
    ]


def test_limits_on_a_go_heap_are_raised_for_a_python_process_by_the_suites_own_means() -> None:
    environment = suite_environment(limits_by_spec([_SOURCE]))
    assert environment == {"KARPENTER_PERF_THRESHOLDS": '{"basic/consolidation": {"heap_mb": 240.0}}'}
