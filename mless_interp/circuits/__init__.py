"""From heads to circuits: how a head acts, on whom, and from which tokens."""
