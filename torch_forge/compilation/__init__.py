"""Candidates to shared libraries: torch's load_inline in a worker, and what compiler logs mean."""
