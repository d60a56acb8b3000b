"""The strategies that drive planning, generation, building, checking and timing to one winner."""
