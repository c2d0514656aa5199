"""A home of its own for every test of the command line."""

import pytest
from process import Home


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return Home(tmp_path / "home")
