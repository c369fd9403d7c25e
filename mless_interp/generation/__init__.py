"""Completing prompts: greedy or drawn, in batches, with heads knocked out or activations redistributed."""
