"""Kernels from a language model: prompt, call, reply to candidate, all within a budget."""
