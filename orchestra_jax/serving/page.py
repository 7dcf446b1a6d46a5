"""The page at `/`: one file, with headers under which a browser runs nothing else."""

import secrets
from pathlib import Path

_PAGE = Path(__file__).with_name("page.html").read_text()


def page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers. It loads nothing, runs its own script alone, and is shown in no frame."""
    nonce = secrets.token_urlsafe(16)
    policy = {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": f"'nonce-{nonce}'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-store",
    }
    return _PAGE.replace("NONCE", nonce), headers
