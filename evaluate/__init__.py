"""Numbers with their provenance, and what is drawn from them."""
