"""Head shelf: one file is one kind of head."""
