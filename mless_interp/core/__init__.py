"""What everything stands on: heads, the names of axes, arguments of public functions checked."""
