"""Measurements of the whole model on a GPU, or with tiny settings on a CPU."""
