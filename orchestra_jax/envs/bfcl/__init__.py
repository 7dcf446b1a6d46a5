"""BFCL's multi-turn tasks: a scripted user, eight stateful APIs, and a state and answers that are compared exactly.

The tasks and the APIs are those of the package `bfcl-eval`, an extra that is installed without its dependencies
(requirements/README.md). Every module imports without it. `golden` tells what is solved.
"""
