"""Which heads carry an effect, held against controls; how they act, on whom, and from which tokens."""
