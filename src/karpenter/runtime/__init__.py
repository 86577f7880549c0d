"""What controllers run on: reconcilers with a queue each, events, leader election, health, logging, process settings.

``karpenter.manager`` wires watches to these queues. A reconciler survives the errors of its controller.
"""
