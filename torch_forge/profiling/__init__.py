"""Workload to ``Profile``: where the time of a model goes, measured without leaving a trace on it."""
