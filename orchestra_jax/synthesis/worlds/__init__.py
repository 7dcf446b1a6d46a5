"""The making of a world's folder from a domain's name: content, functions, tasks, filters, and a page to look at."""
