"""The sentence of result and bold cells: what a paired test says, and honesty about V-Mean and lost rows."""

from error_records import cell

from attnprobe.tables.results import Value, best_of

HEADS = 12


def records(methods, d=(16, 32), layers=(0,), vmean=1.0):
    """A record for each method, budget and layer, whose relative errors are the method's number over d / 16."""
    actual = []
    for layer in layers:
        for name, size in methods.items():
            actual += [relative(cell(name, one, range(HEADS), layer=layer), size * 16 / one) for one in d]
        actual.append(relative(cell("vmean", None, range(HEADS), layer=layer), vmean))
    return actual


def relative(record, value):
    """The record with this relative error in every head, or with these errors."""
    errors = value if isinstance(value, list) else [value] * len(record["heads"])
    metrics = {**record["metrics"], "output_spectral_relative": errors}
    metrics = {name: values for name, values in metrics.items() if name not in ("rounded_rows", "bad_rows")}
    return {**record, "metrics": metrics, "source": {}}


def marked(record, **metrics):
    """The record with these counts of rows in every head."""
    heads = len(record["heads"])
    return {**record, "metrics": {**record["metrics"], **{name: [count] * heads for name, count in metrics.items()}}}


def test_single_values_tie_within_five_per_cent():
    values = {"a": Value(1.0), "b": Value(1.04), "c": Value(1.06)}
    assert best_of(values) == ["a", "b"]
    assert best_of({name: Value(one.value, 0.0) for name, one in values.items()}) == ["a"]
