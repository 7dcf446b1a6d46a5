"""The rows of benchmarks/prices.py: price lists apart from names."""

from benchmarks.prices import measured


def test_new_names_are_no_price_list():
    rows = list(measured("baseline:preference_oracle", 1, new_tools=True))
    lists = [("usual", "usual"), ("swapped", "usual"), ("close", "usual"), ("usual", "new")]
    assert list(dict.fromkeys((row["prices"], row["names"]) for row in rows)) == lists
    assert {row["wish"] for row in rows} == {"accuracy", "cost", "fast", "local"}
