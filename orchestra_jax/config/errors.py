"""The error of a run that cannot start as configured."""


class ConfigError(ValueError):
    """The run cannot start as configured; the message says what to change."""
