"""One contract for every way of doing groups: this process, a pool of its own, a Ray cluster, shards."""

import ctypes
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
import torch
from cells import bits

from attnprobe.errors import SourceError, UsageError
from attnprobe.frame.records.read import read_inputs, read_records
from attnprobe.measure.budget import BudgetRequest, measure_budgets
from attnprobe.measure.condition import ConditionRequest, measure_conditions
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.spectrum import SpectrumRequest, measure_spectra
from attnprobe.measure.theory import TheoryRequest, measure_theory
from attnprobe.run.cells import Place, bundles
from attnprobe.run.plan import Group
from attnprobe.run.provenance import versions
from attnprobe.run.where.backends import TRIES, Alone, Limit
from attnprobe.run.where.pool import Processes
from attnprobe.run.where.ray_actors import Actors, Room, Worker, room_of
from attnprobe.run.where.ray_cluster import _refuse, cluster, refuse_silence
from attnprobe.run.where.sites import site_of

pytestmark = pytest.mark.usefixtures("one_thread")
SPEC = {"n": (40, 64), "layer": (0, 2), "windows": 2}
COMMANDS = {
    "error": (measure_errors, ErrorRequest, {"methods": ("skyformer,performer",), "d": (4, 8), "repeats": 2}),
    "spectrum": (measure_spectra, SpectrumRequest, {"of": ("softmax,skyformer",), "d": (4,)}),
    "condition": (measure_conditions, ConditionRequest, {"methods": ("skyformer",), "d": (4,)}),
    "theory": (measure_theory, TheoryRequest, {"theorems": ("rank-collapse,skyformer-lemma-1",), "d": (4,)}),
    "budget": (measure_budgets, BudgetRequest, {"methods": ("skyformer",), "epsilon": (0.5,), "repeats": 2}),
}


@pytest.fixture(scope="module")
def file(two_layers):
    return two_layers


@pytest.fixture(scope="module")
def address():
    """A cluster of two CPUs that somebody else started."""
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ.update(quiet)
    options = f"--head --port {port} --num-cpus 2 --num-gpus 1 --include-dashboard false --block"
    start = [*ray, "start", *options.split()]

    def ends_too():
        return ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # with these tests, however they end

    head = subprocess.Popen(start, stdout=-3, stderr=-3, start_new_session=True, preexec_fn=ends_too)
    until = time.monotonic() + 60
    while time.monotonic() < until and head.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"
    head.send_signal(signal.SIGTERM)
    head.wait(timeout=60)
    for name in quiet:
        os.environ.pop(name)


def measured(command, file, out, progress=lambda done, total, label: None, **rest):
    measure, request, given = COMMANDS[command]
    source = {"qkv": str(file), "device": "cpu"}
    return measure(request(**source, out=str(out), **{**SPEC, **given, **rest}), progress=progress)


@pytest.fixture(scope="module")
def alone(file, tmp_path_factory):
    """What one process makes of each command."""
    actual = {}

    def made(command):
        if command not in actual:
            actual[command] = measured(command, file, tmp_path_factory.mktemp(command))
        return actual[command]

    return made


def same(run, expected):
    """The records of two runs to the last bit, in one order, and their input statistics."""
    assert [one["key"] for one in run.outcome.records] == [one["key"] for one in expected.outcome.records]
    assert bits(run.outcome.records) == bits(expected.outcome.records) == bits(read_records(run.path))
    assert bits(read_inputs(run.path).records) == bits(read_inputs(expected.path).records)
    for path in [*run.path.glob("rows*"), *run.path.glob("inputs*")]:
        lines = map(json.loads, path.read_text().splitlines())
        keys = [line["key"] for line in lines if "schema" in line]  # rows of cells have none
        assert len(keys) == len(set(keys)), path


class Seen:
    """A progress that must go up, with what a test does at a label."""

    def __init__(self, act=lambda label: None):
        self.places, self.act = [], act

    def __call__(self, done, total, label):
        self.places.append((done, total))
        self.act(label)

    def check(self, total):
        assert self.places == sorted(self.places) and self.places[-1] == (total, total)


@pytest.mark.slow  # the ordinary suite has the same of errors where processes die, below
@pytest.mark.parametrize("command", COMMANDS)
def test_a_pool_makes_the_records_of_one_process(command, file, alone, tmp_path):
    labels = []
    seen = Seen(labels.append)
    run = measured(command, file, tmp_path / "r", seen, jobs=2)
    same(run, alone(command))
    assert [label for label in labels if "reading" in label][0].startswith("reading n=64")  # the longest first
    seen.check(len(run.outcome.records))
    assert (run.outcome.measured, run.outcome.done_before) == (len(run.outcome.records), 0)
    manifest = json.loads((tmp_path / "r/manifest.json").read_text())
    assert [one["threads"] for one in manifest["processes"]] == [1]
    before = (tmp_path / "r/rows.jsonl").read_bytes()
    assert measured(command, file, tmp_path / "r", jobs=2).outcome.done_before == len(run.outcome.records)
    assert (tmp_path / "r/rows.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_ray_makes_the_records_of_one_process(command, file, alone, address, tmp_path):
    seen = Seen()
    run = measured(command, file, tmp_path / "r", seen, backend=f"ray:{address}", jobs=2)
    same(run, alone(command))
    seen.check(len(run.outcome.records))


@pytest.mark.slow
def test_shards_make_the_records_of_one_process(file, alone, tmp_path):
    for shard in ("1/2", "2/2"):
        measured("error", file, tmp_path / "r", shard=shard, jobs=2 if shard == "2/2" else 1)
    assert bits(read_records(tmp_path / "r")) == bits(alone("error").outcome.records)
    assert bits(read_inputs(tmp_path / "r").records) == bits(read_inputs(alone("error").path).records)


def children_of_ray():
    """The processes of this machine in which Ray runs what a run gave it."""
    actual = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in actual if "ray::Worker" in line]


@pytest.mark.parametrize("backend", ["pool", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_process_killed_in_the_middle_loses_nothing(backend, file, request, tmp_path):
    where = {"jobs": 2}
    if backend == "ray":
        where |= {"backend": f"ray:{request.getfixturevalue('address')}"}
    calls = tmp_path / "calls"
    (tmp_path / "dying.py").write_text(f"""import os, signal


def dying(q, k, v):
    with open({str(calls)!r}, "ab", buffering=0) as file:
        file.write(b"x")
        number = file.tell()  # of this call alone; two processes could see the same size
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return v
""")
    given = {"methods": (f"skyformer,performer,{tmp_path}/dying.py:dying",), "d": (4,), "repeats": 1}
    labels = []
    seen = Seen(labels.append)
    run = measured("error", file, tmp_path / "r", seen, **given, **where)
    total = len(run.outcome.records)
    assert (run.outcome.measured, run.outcome.done_before) == (total, 0)
    assert [label for label in labels if "reading" in label][0].startswith("reading n=64")  # the longest first
    manifest = json.loads((tmp_path / "r/manifest.json").read_text())
    assert {one["threads"] for one in manifest["processes"]} == {1}
    [reason] = manifest["deaths"]
    assert "process" in reason
    assert calls.stat().st_size >= 9
    seen.check(total)
    same(run, measured("error", file, tmp_path / "alone", **given))
    assert {record["status"] for record in run.outcome.records} == {"ok"}
    before = (tmp_path / "r/rows.jsonl").read_bytes()
    assert measured("error", file, tmp_path / "r", **given, **where).outcome.done_before == total
    assert (tmp_path / "r/rows.jsonl").read_bytes() == before


class Dying:
    """Work that notes each try of a group in a file, and dies in the tries that a group asks for."""

    def __init__(self, folder, deaths, refuses=False, stillborn=False):
        self.folder, self.deaths, self.refuses, self.stillborn = folder, deaths, refuses, stillborn

    def start(self, number, send):
        if self.stillborn:
            os._exit(7)

        def do(group, told):
            with open(self.folder / group, "a") as file:
                file.write(f"{number}\n")
            send("begun", told)
            tries = len((self.folder / group).read_text().splitlines())
            if self.refuses:
                raise SourceError(f"{group} is gone")
            if tries <= self.deaths.get(group, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            send("made", group.upper())

        return f"number {number}", do


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self, act=lambda: None):
        self.everything, self.losses, self.deaths, self.begun, self.act = [], {}, [], [], act
        self.overruns = []

    def done_keys(self, group):
        return f"told {group}"

    def received(self, group, kind, value):
        self.act()
        self.everything.append((group, kind, value))

    def died(self, reason):
        self.deaths.append(reason)

    def lost(self, group, reason):
        self.losses[group] = reason

    def began(self, facts):
        self.begun.append(facts)

    def overran(self, group, limit):
        self.overruns.append((group, limit))

    def of(self, kind):
        return {(group, value) for group, one, value in self.everything if one == kind}


@contextmanager
def backend_of(name, request):
    if name == "ray":
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes do not have these tests
        with cluster(request.getfixturevalue("address"), 2, 1, 0, "cpu", print) as (backend, _):
            yield backend
    else:
        yield Alone() if name == "alone" else Processes(2)


def gone():
    """Whether no process of Ray's is left, once those that were ended have had time to."""
    until = time.monotonic() + 20
    while children_of_ray() and time.monotonic() < until:
        time.sleep(0.1)
    return children_of_ray() == []


SLOW_RAY = pytest.param("ray", marks=pytest.mark.slow)
SLOW_POOL = pytest.param("pool", marks=pytest.mark.slow)  # each of its processes imports torch


@pytest.mark.parametrize("name", ["alone", SLOW_POOL, SLOW_RAY])
def test_every_group_is_done_once_and_heard_in_order(name, request, tmp_path):
    heard = Heard()
    with backend_of(name, request) as backend:
        backend.run(iter("abcde"), Dying(tmp_path, {}), heard)
    assert heard.of("made") == {(group, group.upper()) for group in "abcde"}
    for group in "abcde":
        expected = [("begun", f"told {group}"), ("made", group.upper()), ("end", None)]
        assert [(kind, value) for one, kind, value in heard.everything if one == group] == expected
    assert heard.losses == {} and len(heard.begun) in ((0,) if name == "alone" else (1, 2))


@pytest.mark.parametrize("name", [SLOW_POOL, SLOW_RAY])
def test_a_group_whose_process_dies_is_done_again_and_given_up_after_three(name, request, tmp_path):
    heard = Heard()
    with backend_of(name, request) as backend:
        backend.run("abcd", Dying(tmp_path, {"b": TRIES - 1, "c": TRIES}), heard)
    assert heard.of("made") == {("a", "A"), ("b", "B"), ("d", "D")}
    assert len(heard.deaths) == 2 * TRIES - 1
    assert list(heard.losses) == ["c"] and heard.losses["c"].endswith(f"{TRIES} times")
    how = {"pool": "its process was ended by SIGKILL", "ray": "its process on the cluster died: "}
    assert heard.losses["c"].startswith(how[name])
    expected = {"a": 1, "b": TRIES, "c": TRIES, "d": 1}
    assert {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()} == expected
    expected = {"a": 1, "b": TRIES, "c": TRIES, "d": 1}
    assert Counter(group for group, kind, _ in heard.everything if kind == "begun") == expected
    assert multiprocessing.active_children() == []


class Overrunning:
    """Work whose limit is 10 ms, of which a group may make more, in its first try or in every one."""

    def __init__(self, folder, seconds):
        self.folder, self.seconds = folder, seconds

    def start(self, number, send):
        def do(group, told):
            first = not (self.folder / group).exists()
            (self.folder / group).touch()
            send("limit", Limit((group,), 0.01))
            time.sleep(self.seconds.get(group, 0) if first or group.isupper() else 0)
            send("limit", None)
            send("made", group)

        return "", do


@pytest.mark.parametrize("name", [SLOW_POOL, SLOW_RAY])
def test_a_process_that_goes_on_beyond_its_limit_is_ended(name, request, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.run.where.backends.GRACE", 0.5)
    heard = Heard()
    with backend_of(name, request) as backend:
        backend.run("abC", Overrunning(tmp_path, {"b": 60, "C": 60}), heard)
    assert heard.of("made") == {("a", "a"), ("b", "b")}
    assert Counter(heard.overruns) == {("b", Limit(("b",), 0.01)): 1, ("C", Limit(("C",), 0.01)): 1 + TRIES}
    assert heard.losses == {"C": "its process was ended 0.5 s beyond a limit, 3 times"} and heard.deaths == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("name", ["alone", SLOW_POOL, SLOW_RAY])
def test_what_work_raises_is_raised_here_and_no_process_is_left(name, request, tmp_path):
    with pytest.raises(SourceError, match="is gone"), backend_of(name, request) as backend:
        backend.run("abc", Dying(tmp_path, {}, refuses=True), Heard())
    assert multiprocessing.active_children() == []
    assert name != "ray" or gone()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool", "ray"])
def test_processes_that_cannot_begin_end_the_run(name, request, tmp_path):
    with (
        pytest.raises(UsageError, match="before it could begin, 3 times; .* to see why"),
        backend_of(name, request) as backend,
    ):
        backend.run("ab", Dying(tmp_path, {}, stillborn=True), Heard())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["alone", SLOW_POOL, SLOW_RAY])
def test_an_interruption_ends_every_process(name, request, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), backend_of(name, request) as backend:
        backend.run("abc", Dying(tmp_path, {}), Heard(interrupt))
    assert multiprocessing.active_children() == []
    assert name != "ray" or gone()


class Forking:
    """Work that leaves a process behind which holds its pipe, and dies."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, number, send):
        def do(group, told):
            if child := os.fork():
                (self.folder / str(child)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(120)
            os._exit(0)

        return {}, do


@pytest.mark.slow
def test_the_end_of_a_process_is_heard_though_it_left_another_behind(tmp_path):
    heard = Heard()
    Processes(1).run("a", Forking(tmp_path), heard)
    left = [int(path.name) for path in tmp_path.iterdir()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # it is there still
    assert len(left) == TRIES and list(heard.losses) == ["a"]


@pytest.mark.slow
def test_what_a_process_prints_is_not_on_stdout(file, tmp_path):
    (tmp_path / "loud.py").write_text("""import os


def loud(q, k, v):
    print("LOUD")
    os.write(1, b"LOUD")
    os.system("echo LOUD")
    return v
""")
    options = f"--qkv {file} --layer 0,2 --method {tmp_path}/loud.py:loud --jobs 2 --format json --out {tmp_path}/r"
    command = [sys.executable, "-m", "attnprobe", "error", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "LOUD" in done.stderr, done.stderr
    json.loads(done.stdout)


class Started(Dying):
    """Counts its starts, in this process."""

    starts = 0

    def start(self, number, send):
        type(self).starts += 1
        return super().start(number, send)


def test_no_group_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(Started, "starts", 0)
    hired, backend, heard = [], Processes(2), Heard()
    hire = backend.hire
    monkeypatch.setattr(backend, "hire", lambda work, number: hired.append(number) or hire(work, number))
    backend.run(iter(()), Dying(tmp_path, {}), heard)
    Alone().run(iter(()), Started(tmp_path, {}), heard)
    assert (hired, Started.starts, heard.everything, heard.begun) == ([], 0, [], [])
    assert multiprocessing.active_children() == [] and list(tmp_path.iterdir()) == []
    Alone().run("a", Started(tmp_path, {}), heard)
    assert Started.starts == 1 and heard.of("made") == {("a", "A")}


class Twice(Alone):
    """Hands on every record and every input statistic twice, as one that was on its way when its process died may."""

    def run(self, groups, work, listener):
        received = listener.received

        def twice(group, kind, value):
            for _ in range(2 if kind in ("record", "inputs") else 1):
                received(group, kind, value)

        listener.received = twice
        super().run(groups, work, listener)


def test_what_comes_twice_is_kept_once(file, alone, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.run.where.sites.Alone", Twice)
    same(measured("error", file, tmp_path / "r"), alone("error"))


class Short(Alone):
    """Leaves out the last record of each group."""

    def run(self, groups, work, listener):
        received, held = listener.received, []

        def short(group, kind, value):
            if kind == "end":
                held.clear()
            elif kind == "record":
                held.append(value)
                if len(held) == 1:
                    return
                kind, value = "record", held[-2]
            received(group, kind, value)

        listener.received = short
        super().run(groups, work, listener)

    def bundle(self, count):
        return 1


def test_what_a_process_left_out_has_failed(file, alone, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.run.where.sites.Alone", Short)
    records = measured("error", file, tmp_path / "r").outcome.records
    failed = [record for record in records if record["status"] == "failed"]
    assert len(failed) == 8 and {record["reason"] for record in failed} == {
        "its process read other inputs than the process that writes the records"
    }
    expected = bits(alone("error").outcome.records)
    assert {key for key, one in bits(records).items() if one == expected[key]} == expected.keys() - {
        record["key"] for record in failed
    }
    monkeypatch.undo()
    assert bits(measured("error", file, tmp_path / "r", retry_failed=True).outcome.records) == expected


def test_another_version_or_folder_on_a_node_is_refused(tmp_path):
    for folder, version, message in (
        (tmp_path, "0.0", "a node has attnprobe .* and this is 0.0"),
        (tmp_path / "none", versions()["attnprobe"], "is not on a node"),
    ):
        kind, error = Worker(None, str(folder), version).start(None, 0)
        assert kind == "raised"
        with pytest.raises(UsageError, match=message):
            raise error


def test_a_process_on_a_cluster_shows_a_label_at_most_every_fifth_of_a_second(monkeypatch, tmp_path):
    class Remote:
        def __init__(self):
            self.sent = []
            self.put = SimpleNamespace(remote=self.sent.append)

    mailbox, now = Remote(), [100.0]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda done: done))
    monkeypatch.setattr("attnprobe.run.where.ray_actors.time.monotonic", lambda: now[0])
    worker = Worker(mailbox, str(tmp_path), versions()["attnprobe"])
    for later, kind, value in ((0, "show", 1), (0.1, "show", 2), (0.05, "record", 3), (0.1, "show", 4), (0, "show", 5)):
        now[0] += later
        worker._send(7, kind, value)
    assert mailbox.sent == [(7, "show", 1), (7, "record", 3), (7, "show", 4)]


class Sees:
    """Work whose process says which GPUs it sees."""

    def start(self, number, send):
        return os.environ.get("CUDA_VISIBLE_DEVICES"), lambda group, told: time.sleep(1)


@pytest.mark.slow
def test_processes_share_a_gpu_and_see_no_other(address):
    """Of a cluster that says that it has one: Ray counts it and shows it, whether or not it is there."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for gpus, size in ((None, 1), (0.5, 2)):
        with cluster(address, None, 1, gpus, "auto", print) as (backend, device):
            assert (backend.size, device) == (size, "cuda:0")
            heard = Heard()
            if size == 2:
                backend.run("abcdef", Sees(), heard)
                assert heard.begun == ["0", "0"]
    with pytest.raises(UsageError, match="2 CPU, 1 GPU; give ray:ADDRESS,gpus=F"):
        cluster(address, None, 1, 2.0, "cuda", print).__enter__()


@pytest.mark.slow
def test_a_cluster_whose_nodes_are_gone_is_not_waited_for(address, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.run.where.ray_actors.PATIENCE", 1.0)
    with cluster(address, 2, 1, 0, "cpu", print) as (backend, _):
        without_room = Actors(backend.ray, Room(64, 0, ()), 2)
        with pytest.raises(UsageError, match="no node of the cluster had room"):
            without_room.run("ab", Dying(tmp_path, {}), Heard())


def test_places_that_share_a_forward_are_bundled():
    places = [
        Place(source, Group(n, window), layer)
        for source in (0, 1)
        for n in (8, 16)
        for window in (0, 1)
        for layer in range(5)
    ]
    for most in (1, 2, 5, 100):
        actual = bundles(places, most)
        assert [place for bundle in actual for place in bundle] == places
        assert all(len({(place.source, place.group) for place in bundle}) == 1 for bundle in actual)
        assert [len(bundle) for bundle in actual] == ([1] * 5 if most == 1 else [2, 2, 1] if most == 2 else [5]) * 8
    assert (Alone().bundle(40), Processes(2).bundle(40), Processes(2).bundle(3)) == (40, 5, 1)


def test_the_default_is_a_process_for_each_visible_gpu(monkeypatch):
    def site(device, **rest):
        with site_of(ErrorRequest(device=device, **rest), print) as actual:
            return actual

    assert site("cpu").alone and site("auto").alone and site("cpu", jobs=2).backend.size == 2
    assert site("cpu", jobs=2).devices == ()
    for jobs in (None, 1):  # under a limit it must be possible to end the process, whose numbers are those of this one
        actual = site("cpu", jobs=jobs, cell_timeout=1.0)
        assert (actual.backend.size, actual.devices, actual.threads) == (1, (), torch.get_num_threads())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for device in ("auto", "cuda"):
        actual = site(device)
        assert (actual.backend.size, actual.devices, actual.threads) == (3, ("cuda:0", "cuda:1", "cuda:2"), 2)
        assert site(device, jobs=6).devices == actual.devices and site(device, jobs=6).threads == 1
        assert site(device, jobs=1).alone
    assert site("cuda:1").alone and site("cuda:1", jobs=2).devices == ()


@pytest.mark.parametrize(("device", "gpus"), [("cuda", None), ("cuda", 0.01), ("cuda", 1), ("cuda", 3), ("cpu", 0)])
def test_a_device_and_its_share_of_gpus_may_be(device, gpus):
    _refuse(device, gpus)
    with pytest.raises(UsageError, match="device cuda needs GPUs, and gpus=0; drop one of the two"):
        _refuse("cuda", 0)


def test_a_node_may_lack_a_resource():
    nodes = [{"Resources": {"CPU": 2.0}, "Alive": True}, {"Resources": {"GPU": 1.0}, "Alive": True}]
    nodes += [{"Resources": {"CPU": 9.0}, "Alive": False}]
    assert room_of(SimpleNamespace(nodes=lambda: nodes), 1, 0).nodes == ((2.0, 0.0), (0.0, 1.0))


NODES = ((8.0, 2.0), (4.0, 0.0), (16.0, 4.0))


@pytest.mark.parametrize(
    ("cpus", "gpus", "places"),
    [
        *((1, 0, 28), (4, 0, 7), (1, 1, 6), (1, 0.5, 12), (1, 0.3, 18), (8, 1, 3), (1, 2, 3), (1, 4, 1), (1, 8, 0)),
        (32, 0, 0),
    ],
)
def test_room_is_counted_node_by_node(cpus, gpus, places):
    room = Room(cpus, gpus, NODES)
    assert room.capacity == places
    if not places:
        with pytest.raises(UsageError, match="no node has room .* 16 CPU, 4 GPU; give ray:ADDRESS,"):
            room.checked_jobs(None)
        return
    assert room.checked_jobs(None) == room.checked_jobs(places) == places
    with pytest.raises(UsageError, match=f"jobs={places + 1} .* room for {places}; give --jobs {places} or less"):
        room.checked_jobs(places + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "slurm"}, "backend 'slurm': choose local or ray:ADDRESS"),
        ({"backend": "local:x"}, "backend 'local:x': choose local or ray:ADDRESS"),
        ({"backend": "ray"}, "name the cluster, ray:HOST:PORT"),
        ({"backend": "ray:,cpus=1"}, "name the cluster, ray:HOST:PORT"),
        ({"backend": "ray:ray://x:1"}, "Ray Client is not supported"),
        ({"backend": "ray:local,gpus=1"}, "device cpu needs no GPU"),
        ({"backend": "ray:x"}, "'x' is not HOST:PORT, auto or local"),
        ({"backend": "ray:local,gpus=inf"}, "gpus=inf: choose"),
        ({"backend": "ray:local,gpus=nan"}, "gpus=nan: choose"),
        ({"backend": "ray:local,gpus=1.5"}, "a fraction from 0.01 to 1, or a whole number"),
        ({"backend": "ray:local,cpus=0"}, "cpus=0: choose"),
        ({"backend": "ray:local,nodes=2"}, "unknown option of ray 'nodes'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(given, message, file, tmp_path):
    with pytest.raises(UsageError, match=message):
        measured("error", file, tmp_path / "r", **given)
    assert not (tmp_path / "r").exists()


@pytest.mark.slow  # starts a cluster
def test_a_cluster_that_has_no_room_is_refused_before_anything_runs(file, address, tmp_path):
    cases = (({"backend": f"ray:{address}", "jobs": 3}, "room for 2"), ({"backend": f"ray:{address},cpus=3"}, "2 CPU"))
    for given, message in cases:
        with pytest.raises(UsageError, match=message):
            measured("error", file, tmp_path / "r", **given)
    assert not (tmp_path / "r").exists()


def test_a_cluster_that_is_not_there_is_said(file, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SourceError, match="ray: no cluster at 127.0.0.1:9"):
        measured("error", file, tmp_path / "r", backend="ray:127.0.0.1:9")


@pytest.fixture
def listener():
    """Something that listens and is no Ray."""
    with socket.socket() as actual:
        actual.bind(("", 0))
        actual.listen(5)
        yield actual


@pytest.mark.parametrize(
    "says", [b"", pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", marks=pytest.mark.slow)], ids=["nothing", "http"]
)
def test_what_listens_and_is_no_ray_is_given_up_in_time(says, listener):
    """A process of its own is ended: Ray itself goes on for minutes."""
    pytest.importorskip("ray")
    held = []

    def answer():
        while True:
            try:
                held.append(listener.accept()[0])
                held[-1].sendall(says)
            except OSError:
                return

    threading.Thread(target=answer, daemon=True).start()
    before = set(threading.enumerate())
    with pytest.raises(SourceError, match=r"ray: no cluster at 127.0.0.1:\d+: .* did not answer as Ray within 2 s"):
        refuse_silence(f"127.0.0.1:{listener.getsockname()[1]}", deadline=2.0)
    assert held and set(threading.enumerate()) <= before


@pytest.mark.slow  # the command imports torch and Ray
def test_ctrl_c_ends_a_join_that_hangs_within_two_seconds(file, listener, tmp_path):
    pytest.importorskip("ray")
    where = f"127.0.0.1:{listener.getsockname()[1]}"
    command = ["error", "--qkv", str(file), "--backend", f"ray:{where}", "--out", str(tmp_path / "r")]
    run = [sys.executable, "-c", "from attnprobe.cli import main; main()", *command]
    process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True, start_new_session=True)
    listener.settimeout(120)
    for _ in range(2):  # the first is closed as soon as it is there, the second is Ray's
        listener.accept()
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert time.monotonic() < begin + 2
    assert (process.returncode, error.strip().splitlines()[-1:]) == (130, ["attnprobe: interrupted"])
    assert "Traceback" not in error and not (tmp_path / "r").exists()


@pytest.mark.slow  # starts a cluster
def test_the_token_of_a_private_cluster_is_for_its_owner_alone(file, tmp_path):
    pytest.importorskip("ray")
    command = ["error", "--qkv", str(file), "--d", "4", "--no-matrix", "--backend", "ray:local"]
    run = [sys.executable, "-c", "from attnprobe.cli import main; main()", *command, "--jobs", "1", "--out", "r"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    subprocess.run(
        run, env={**clean, "HOME": str(tmp_path)}, cwd=tmp_path, check=True, capture_output=True, umask=0o022
    )
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "r/rows.jsonl").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
def test_the_cluster_of_this_node_is_the_one_that_was_left_here(file, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def auto():
        return measured("error", file, tmp_path / "r", backend="ray:auto")

    with pytest.raises(SourceError, match="this node belongs to no cluster"):
        auto()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:9\n")
    with pytest.raises(SourceError, match="ray: no cluster at 127.0.0.1:9: .* refused"):
        auto()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:7")
    with pytest.raises(SourceError, match="ray: no cluster at 127.0.0.1:7"):
        auto()


def test_a_process_that_cannot_start_says_why():
    def closure(): ...

    with pytest.raises((AttributeError, pickle.PicklingError), match="closure"):
        Processes(1).hire(closure, 0)
