"""Pages that show what a run's rollouts were: static files that open in a browser without a server."""

from orchestra_jax.evaluation.pages.site import write_pages

__all__ = ["write_pages"]
