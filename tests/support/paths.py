"""Where this clone, its tests and what stands beside it are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
SHARED = ROOT.parent / "shared" / "data"


def test_file(name: str) -> Path:
    """The test file with this name, in whatever room; names are unique."""
    [path] = TESTS.rglob(name)
    return path
