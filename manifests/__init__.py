"""Tables of what there is to encode: images, texts and how they belong together."""
