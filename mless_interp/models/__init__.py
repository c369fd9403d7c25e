"""The seam, its backends, loading and checking, replay, and two kinds of model that need no download."""
