"""``SessionReport`` to words, tables and progress lines: computed once in ``summarize``, then rendered."""
