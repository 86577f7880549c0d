"""TODO: say what belongs here."""
