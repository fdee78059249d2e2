"""Frozen encoders over a manifest, into the cache."""
