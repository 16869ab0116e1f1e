"""The mathematics: tensors in, tensors out; no files, no estimators, no data sources."""
