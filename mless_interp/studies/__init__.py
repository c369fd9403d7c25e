"""Studies: several insertions, measured alike, as one file asks for them."""
