"""Objective shelf: one file is one training objective."""
