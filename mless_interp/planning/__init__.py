"""Before a long run: its time and memory on this machine, or on a GPU elsewhere."""

from .planned import Plan, plan_run

__all__ = ["Plan", "plan_run"]
