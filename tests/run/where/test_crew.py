"""A crew whose processes say what a test wrote down: who gets which group, and what follows a death or a limit."""

from collections import deque
from types import SimpleNamespace

import pytest

from attnprobe.errors import SourceError, UsageError
from attnprobe.run.limits import TIMEOUT
from attnprobe.run.loop import Ledger
from attnprobe.run.where.backends import FALSE_STARTS, TRIES, Crew, Died, Limit, Member, raisable

READY, END, SILENCE = ("ready", {"host": "h"}), ("end", None), None
DEAD = Died("its process was ended by SIGKILL")
LATE = ("limit", Limit(("key",), -60.0))  # it was over a minute ago


class Scripted(Crew):
    """Processes that say one thing a turn, each (number, what)."""

    def __init__(self, *events, size=1):
        super().__init__(size, "see why")
        self.events, self.hired, self.given, self.ended = deque(events), 0, [], []

    def hire(self, work, number):
        self.hired += 1
        return Member(number)

    def give(self, member, group, done):
        self.given.append((member.number, group, done))

    def hear(self):
        number, heard = self.events.popleft()
        if heard is not SILENCE:
            yield next(one for one in self.members if one.number == number), heard

    def dismiss(self, members):
        self.ended += [one.number for one in members]


class Listening:
    def __init__(self):
        self.heard = []

    def done_keys(self, group):
        return {f"of {group}": None}

    def __getattr__(self, name):
        return lambda *what: self.heard.append((name, *what))


def listened(crew, *groups):
    listener = Listening()
    crew.run(groups, None, listener)
    assert not crew.events and {one.number for one in crew.members} <= set(crew.ended)
    return listener.heard


def test_a_process_that_is_ready_gets_one_group_after_the_other():
    crew = Scripted((0, READY), (0, ("record", 1)), (0, END), (0, END))
    assert listened(crew, "a", "b") == [
        ("began", {"host": "h"}),
        ("received", "a", "record", 1),
        ("received", "a", "end", None),
        ("received", "b", "end", None),
    ]
    assert crew.given == [(0, "a", {"of a": None}), (0, "b", {"of b": None})] and crew.hired == 1


def test_no_more_processes_are_started_than_groups_wait():
    crew = Scripted((0, READY), (1, READY), (0, END), (1, END), size=3)
    listened(crew, "a", "b")
    assert crew.hired == 2 and [number for number, *_ in crew.given] == [0, 1]


def test_a_group_is_lost_when_its_processes_died_three_times():
    crew = Scripted(*[(0, READY), (0, DEAD)] * TRIES, (0, READY), (0, END))
    heard = listened(crew, "a", "b")
    assert [one for one in heard if one[0] in ("died", "lost")] == [
        *[("died", DEAD.reason)] * TRIES,
        ("lost", "a", f"{DEAD.reason}, 3 times"),
    ]
    assert [group for _, group, _ in crew.given] == ["a"] * TRIES + ["b"] and crew.hired == TRIES + 1


def test_an_idle_process_that_dies_loses_no_group():
    crew = Scripted((0, READY), (1, READY), (0, END), (0, DEAD), (1, END), size=2)
    heard = listened(crew, "a", "b")
    assert ("died", DEAD.reason) in heard and not any(one[0] == "lost" for one in heard)
    assert [group for _, group, _ in crew.given] == ["a", "b"]


def test_processes_that_die_before_they_can_begin_end_the_run():
    crew = Scripted(*[(0, DEAD)] * FALSE_STARTS)
    with pytest.raises(UsageError, match="jobs: its process .* SIGKILL before it could begin, 3 times; see why"):
        listened(crew, "a")
    almost = [(0, DEAD)] * (FALSE_STARTS - 1)
    crew = Scripted(*almost, (0, READY), (0, DEAD), *almost, (0, READY), (0, END))
    assert [one[0] for one in listened(crew, "a")] == ["began", "died", "began", "received"]


def test_what_a_process_raised_is_raised_here_and_all_are_ended():
    crew = Scripted((0, READY), (1, ("raised", SourceError("lost"))), size=2)
    with pytest.raises(SourceError, match="lost"):
        crew.run(["a", "b"], None, Listening())
    assert sorted(crew.ended) == [0, 1]
    error = SourceError("x")
    assert raisable(error) is error and isinstance(raisable(ValueError("x")), RuntimeError)
    assert "x" in str(raisable(KeyError("x")))


def test_a_process_beyond_its_limit_is_ended_and_the_rest_of_its_group_is_done_by_another():
    crew = Scripted((0, READY), (0, LATE), (0, SILENCE), (0, READY), (0, END))
    heard = listened(crew, "a")
    assert [one[0] for one in heard] == ["began", "overran", "began", "received"]
    assert heard[1] == ("overran", "a", LATE[1]) and [group for _, group, _ in crew.given] == ["a", "a"]
    in_time = Scripted((0, READY), (0, ("limit", Limit(("key",), 60.0))), (0, SILENCE), (0, END))
    assert "overran" not in [one[0] for one in listened(in_time, "a")]


def test_a_group_whose_process_exceeds_the_same_limit_again_and_again_is_lost():
    crew = Scripted(*[(0, READY), (0, LATE), (0, SILENCE)] * (TRIES + 1))
    heard = listened(crew, "a")
    assert [one[0] for one in heard].count("overran") == TRIES + 1
    assert heard[-1] == ("lost", "a", "its process was ended 5 s beyond a limit, 3 times")


def test_a_cell_beyond_its_limit_has_failed_and_no_other():
    cells = {"here": [SimpleNamespace(key=key) for key in "abc"]}
    kept = []
    ledger = SimpleNamespace(cells=SimpleNamespace(by_place=cells), missing={"here": {"a", "b"}}, run="r")
    ledger._keep = lambda place, record: kept.append((place, record["key"], record["status"], record["reason"]))
    ledger._fail = lambda *given: Ledger._fail(ledger, *given)

    def record_of(cells, place, cell, run, result):
        return {"key": cell.key, **result}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnprobe.run.loop.record_of", record_of)
        Ledger.overran(ledger, ("here",), Limit(("a", "c"), 2.5))
        Ledger.lost(ledger, ("here",), "gone")
    reason = f"{TIMEOUT}: took longer than --cell-timeout 2.5, and its process was ended"
    assert kept[0] == ("here", "a", "failed", reason)
    assert kept[1:] == [("here", "a", "failed", "gone"), ("here", "b", "failed", "gone")]
