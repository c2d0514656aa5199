"""Recorded machines, each unpacked once a session. Whoever changes one puts it back."""

import pytest
from recorded import recorded


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    found = {}

    def unpack(name):
        if name not in found:
            found[name] = recorded(name, tmp_path_factory.mktemp(name))
        return found[name]

    return unpack


@pytest.fixture(scope="session")
def probed(unpacked):
    """What `probe` says of a recorded machine."""
    found = {}

    def probe(name):
        if name not in found:
            found[name] = unpacked(name).probe()
        return found[name]

    return probe
