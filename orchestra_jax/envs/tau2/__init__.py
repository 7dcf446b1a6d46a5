"""τ²-Bench: customers of an airline, a shop, a telephone company and a bank, who talk with the policy.

The tasks, the databases and the classes that change them are those of the package `inspect-evals`, which is installed
without its dependencies (requirements/README.md). Every module imports without it. `criteria` tells what is solved.
"""
