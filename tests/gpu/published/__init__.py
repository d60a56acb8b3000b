"""Kernels that others have published as wins, rewritten from their descriptions, and what the judge is to make of them."""
