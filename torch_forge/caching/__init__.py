"""What is remembered between runs: winners, decisions to keep eager, unfinished tuning runs. Start with ``layers.Cache``."""
