"""Recipes: a paper's table as a list of commands, and its figures beside ours."""
