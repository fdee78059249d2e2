"""Small models on cached features: one training loop, many kinds."""
