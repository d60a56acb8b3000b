"""The ``torch-forge`` command: one small module a sub-command, ``main`` in front of them."""
