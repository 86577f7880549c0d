"""Capacity buffers (feature gate CapacityBuffer): spare capacity kept by scheduling virtual pods (SCH §25).

``buffer_pods`` computes the virtual pods of a buffer, ``buffer_placements`` evaluates a solution for buffers, and
``buffer_reconciler`` keeps pods and status up to date. The definition of a virtual pod is in ``karpenter.state.virtual_pods``.
"""
