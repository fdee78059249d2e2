"""Metric shelf: one file is one pure metric."""
