"""Stage 6: is a built candidate right? Inputs, float64 and eager as yardsticks, gates, verdicts."""
