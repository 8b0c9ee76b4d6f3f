"""The facts of a processor, from Linux or from Python."""

from pathlib import Path

import pytest

from attnprobe.machine import processor

LINUX = "processor : 0\nvendor_id : {}\nmodel name : {}\ncpu MHz : 2596.148\n\nprocessor : 1\nvendor_id : none\n"


@pytest.fixture
def described(monkeypatch):
    """Describe another processor: the text of Linux, or None without Linux, and what Python says."""

    def describe(linux, python=""):
        def read(path, **_):
            if linux is None or path.name == "cpuinfo_max_freq":
                raise FileNotFoundError
            return linux

        monkeypatch.setattr(Path, "read_text", read)
        monkeypatch.setattr(processor.platform, "processor", lambda: python)
        processor.is_intel.cache_clear()

    yield describe
    processor.is_intel.cache_clear()


def test_linux_describes_the_first_core(described):
    described(LINUX.format("GenuineIntel", "Intel(R) Xeon(R) Processor"))
    assert processor.name() == "Intel(R) Xeon(R) Processor" and processor.is_intel()
    assert processor.clock_mhz() == 2596.148
    described(LINUX.format("AuthenticAMD", "AMD EPYC"))
    assert processor.name() == "AMD EPYC" and not processor.is_intel()


def test_without_linux_python_does(described):
    described(None, "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel")
    assert processor.is_intel() and processor.name().startswith("Intel64") and processor.clock_mhz() is None
    described(None, "AMD64 Family 23 Model 113 Stepping 0, AuthenticAMD")
    assert not processor.is_intel()
    described("flags: all\n")
    assert processor.name() == processor.platform.machine() and not processor.is_intel()
