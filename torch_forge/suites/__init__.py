"""Benchmark suites: workloads as data, and one way to run them against eager and torch.compile."""
