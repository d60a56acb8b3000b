"""Stage 4: plan and history to candidates, from templates or from a language model."""
