"""τ²-Bench: customers of an airline, a shop, a telephone company and a bank, who talk with the policy.

The tasks, the databases and the classes that change them are those of the package `inspect-evals`, which is installed
without what it depends on (requirements/README.md). Every module imports without it. What counts as solved is in
`criteria`.
"""
