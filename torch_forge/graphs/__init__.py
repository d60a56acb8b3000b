"""Between torch's graphs and the records: capture, run, resize, decompose and lower to loop form."""
