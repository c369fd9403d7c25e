"""The experiment that names heads: measured, judged, held against controls."""
