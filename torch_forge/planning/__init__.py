"""Problem to plan: what bounds it, what to aim at, in which steps."""
