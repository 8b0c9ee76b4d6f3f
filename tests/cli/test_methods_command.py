"""``attnprobe methods``: the list of methods, and the explanation of one."""

import json

from attnprobe.methods import METHODS, by_family


def test_methods_lists_and_explains(run):
    code, out, _ = run("methods", "--format", "json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["name"] for row in rows] == [entry.name for entry in by_family(kernels=True)]
    assert set(rows[0]) >= {"name", "paper", "year", "targets", "kind", "tags", "budget", "cost", "options"}
    code, out, _ = run("methods", "skyformer")
    assert code == 0
    for name in METHODS["skyformer"].options:
        assert f"{name}=" in out and f"{name}: " in out  # its default, and its explanation
    assert "stratified | iid | wor | rls | kmeans" in out
