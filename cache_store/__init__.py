"""Features at rest: layout, writer, reader, fingerprints."""
