"""NodePool controllers: status conditions (validation, readiness, registration health, disruption), resources and hashes."""
