"""Pages from templates."""

from importlib import resources

import jinja2


def templates(package: str = __package__) -> jinja2.Environment:
    """Return the templates of a package, which may use ours; values in them stay text."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(resources.files(each) / "templates") for each in (package, __package__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
