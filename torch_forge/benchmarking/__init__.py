"""Stage 7: is a right candidate faster? Interleaved timing in a worker, statistics on this side."""
