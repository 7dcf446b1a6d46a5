"""The parts that experts play."""

from orchestra_jax.config.choices import Choice


class Role(Choice):
    """Part that an expert plays."""

    query_writer = "query_writer"
    code_writer = "code_writer"
    math = "math"
    generalist = "generalist"
