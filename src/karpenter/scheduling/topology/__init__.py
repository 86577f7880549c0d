"""Constraints between pods: topology groups, domains and their counts, limits by host, placement by domain."""
