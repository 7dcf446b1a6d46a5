"""From a domain's name to a world's folder: content, functions, tasks, filters, and a page to look at."""
