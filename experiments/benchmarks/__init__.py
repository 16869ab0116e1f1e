"""Benchmarks: accuracy and efficiency on real data, speed, memory, scale, and the tightness of certificates."""
