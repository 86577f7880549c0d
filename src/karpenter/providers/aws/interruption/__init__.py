"""What AWS does to machines, and says of them: interruptions, illness, shifted zones, ending reservations (AWS §§13-15).

Loops with a ``look`` that is one round and says when the next is due; whoever runs them handles faults. ``messages`` reads what
AWS writes, ``responding`` is the one place that acts on it, ``wishes`` has what owners of NodePools may say about that.
"""
