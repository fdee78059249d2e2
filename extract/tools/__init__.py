"""Commands of the `cache` group that need an encoder or a manifest."""
