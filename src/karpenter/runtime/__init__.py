"""The loops: what is reconciled when, and what a process needs around that (settings, queues, health, logging).

``manager`` wires watches to queues and loops; ``act`` does the work. Every loop survives its own faults.
"""
