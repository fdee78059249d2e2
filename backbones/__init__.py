"""Training of whole backbones, the towers that the encoders wrap."""
