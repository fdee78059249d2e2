"""What every stage stands on: errors with exit codes, shelves, settings, durable files, progress."""
