"""Tolerances, in one place."""

EVIDENCE = 1e-8  # relative, float64, against the dense oracle
PREDICTION = 1e-8  # relative to the scale of the values
GRADIENT = 1e-5  # relative, against central differences
STATISTICS = 1e-12  # relative, any chunking and merge order
FLOAT32 = 2e-4  # relative, float32 features against float64
