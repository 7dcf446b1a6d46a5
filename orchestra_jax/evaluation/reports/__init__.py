"""Reports of evaluations side by side: tables, the paper's rows beside them, and a picture; from files alone."""

from orchestra_jax.evaluation.reports.write import write_report

__all__ = ["write_report"]
