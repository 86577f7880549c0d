"""What-if questions about bound pods on a prepared problem, for disruption."""
