"""What flows between stages: frozen dataclasses, JSON both ways, no torch."""
