"""The policies of a server side by side: requests, right answers, dollars and seconds."""

import math
import time
from typing import Any

from sqlalchemy import Connection, func, select

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.serving.database import REQUESTS, ServerDatabase, dollars
from orchestra_jax.serving.feedback import RIGHT


def policies(database: ServerDatabase, hours: float | None = None) -> list[dict[str, Any]]:
    """Return the figures of each policy that answered, in the order of their first requests.

    "right" is the share among the answers with feedback, "low" and "high" are the ends of its 95 % interval (Wilson);
    None without feedback. "usd" and "seconds" are means of the requests that have ended.

    Args:
        hours: only requests of so many hours count; None: all.

    Raises:
        ConfigError: the hours are negative or no number.
    """
    if hours is not None and not 0 <= hours < math.inf:
        raise ConfigError(f"--hours={hours:g} must be a number >= 0: change it, or leave it out for all requests.")
    row, since = REQUESTS.c, 0.0 if hours is None else time.time() - 3600 * hours
    columns = (
        row.policy,
        func.count().label("requests"),
        func.count(row.ended).label("ended"),
        func.avg(row.usd).label("usd"),
        func.avg(row.seconds).label("seconds"),
        func.count(row.score).label("judged"),
        func.count(row.score).filter(row.score >= RIGHT).label("solved"),
    )
    asked = select(*columns).where(row.begun >= since).group_by(row.policy).order_by(func.min(row.begun))

    def work(connection: Connection) -> list[dict[str, Any]]:
        return [dict(found) for found in connection.execute(asked).mappings()]

    found = database.do(work).result()
    for each in found:
        solved, judged = each.pop("solved"), each["judged"]
        each["low"], each["high"] = wilson(solved, judged) or (None, None)
        each["right"] = solved / judged if judged else None
        each["usd"] = None if each["usd"] is None else dollars(float(each["usd"]))
    return found
