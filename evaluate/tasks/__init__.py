"""Task shelf: one file says which metrics of which rows answer one question."""
