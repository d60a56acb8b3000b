"""Kernels from templates: a program's statements printed into the loops that suit its kind, its sizes and the device.

``engine`` is the way in. The parts, from the bottom: ``terms`` and ``lanes`` know what neighbouring elements share,
``schedule`` knows what runs in which pass over a row, ``expressions`` and ``folds`` print scalars; on them stand
``cpu`` with ``cpu_loops``, and ``cuda_row`` and ``cuda_pointwise`` with ``cuda_tile`` and ``cuda_plan``.
"""
