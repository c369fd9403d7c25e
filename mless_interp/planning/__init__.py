"""Before a long run: what it takes on this machine or another, from a config alone."""

from .planned import Plan, Term, plan_run

__all__ = ["Plan", "Term", "plan_run"]
