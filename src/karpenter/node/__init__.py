"""Node controllers: health, which replaces nodes that stay unhealthy."""
