"""Device claims in scheduling: which devices a node offers, and whether claims can be met by them (SCH §27)."""
