"""Nodes for waiting pods: which pods are eligible, what existing nodes hold, which nodes are launched and how pods share them.

``solver.solve`` is the entry; everything else is a step of it. Prices decide among legal plans, never what is legal.
"""
