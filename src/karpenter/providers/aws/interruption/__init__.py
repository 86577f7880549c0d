"""What AWS reports about instances: interruptions, failed status checks, zonal shifts, ending reservations (AWS §§13-15).

Controllers here reconcile periodically and return the seconds until the next pass; the caller handles errors.
``interruption_messages`` parses what AWS sends; ``interruption_handling`` is the one place that acts on it, and reads the
annotations of NodePools about that.
"""
