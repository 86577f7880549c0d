"""What ``karpenter simulate`` does: workloads from traces and scenarios, policies, runs, and reports about them.

The cluster itself, with the production controllers in virtual time, is ``karpenter.simulation``. Here is what makes a study of
it: which pods come and go (``workload``, ``trace_file``, ``scenario_file``), under which settings (``policy``), one run
(``simulation_run``), and what it amounts to (``simulation_report``, ``policy_comparison``).
"""
