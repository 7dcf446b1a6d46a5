"""Inspect (https://inspect.aisi.org.uk): our policies as its models, our benchmarks as its tasks.

Every module imports without inspect-ai, an extra; what needs it is made in functions.
"""
