"""Encoder shelf: one file is one family of frozen models."""
