"""Small bundled word lists."""
