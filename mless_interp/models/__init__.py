"""The seam, its backends, loading and checking, and replay."""
