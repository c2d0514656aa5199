"""Help, version, models, doctor and chat as commands; what each of them imports."""

import json
import statistics
import subprocess
import sys
import time

import pytest
from process import MAIN, scripted

import localmoe
from localmoe.cli import doctor
from localmoe.cli.checks import check_machine
from localmoe.cli.models import table
from localmoe.hardware import Cpu, Gpu, Limits, Machine, Memory, Node, PcieLink
from localmoe.hub.catalog import local_models

GIB = 1 << 30
LOADED = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"


def loaded_by(home, *arguments, program=MAIN):
    """The modules that a run has imported when it ends."""
    tried = program.replace("main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    done = home.run(*arguments, program=tried + LOADED)
    return set(done.stderr.decode().splitlines()[-1].split())


def test_every_command_explains_itself(home):
    overview = home.run("--help").stdout.decode()
    for command in ("chat", "ask", "models", "doctor", "bench"):
        assert f"  {command}  " in overview
        assert home.run(command, "--help").stdout.decode().startswith(f"Usage: localmoe {command} ")


def test_help_fits_80_columns(home):
    for arguments in ((), ("ask",), ("bench",)):
        assert all(len(line) <= 80 for line in home.run(*arguments, "--help").stdout.decode().splitlines())


def test_the_version_is_told(home):
    assert home.run("--version").stdout.decode() == f"localmoe {localmoe.__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("ask", "--help"), ("--version",)])
def test_help_imports_no_room(home, arguments):
    loaded = loaded_by(home, *arguments)
    assert not loaded & {"torch", "textual", "rich", "numpy", "localmoe.engine", "localmoe.settings", "asyncio"}


@pytest.mark.parametrize("arguments", [("doctor",), ("models",)])
def test_doctor_and_models_import_neither_torch_nor_textual(home, arguments):
    assert not loaded_by(home, *arguments) & {"torch", "textual", "rich", "transformers", "huggingface_hub"}


def test_ask_imports_neither_torch_nor_textual(home):
    loaded = loaded_by(home, "ask", "Hi", program=scripted("'Hello'"))
    assert "localmoe.engine.scripted" in loaded
    assert not loaded & {"torch", "textual", "rich", "transformers", "huggingface_hub"}


def test_help_takes_little_longer_than_a_bare_typer_program(home):
    bare = (
        "import typer\napp = typer.Typer(rich_markup_mode=None)\n"
        "@app.command()\ndef main(name: str = 'you') -> None:\n    'Say hello.'\napp()"
    )

    def seconds(program):
        start_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", program, "--help"], env=home.env, capture_output=True, check=True)
        return time.perf_counter() - start_s

    ratios = [seconds(MAIN) / seconds(bare) for _ in range(11)]
    assert statistics.median(ratios) <= 1.3, ratios


@pytest.mark.parametrize("arguments", [(), ("chat",)])
def test_the_chat_asks_for_a_terminal(home, arguments):
    done = home.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == "localmoe: the chat needs a terminal"


def test_models_lists_the_catalogue(home):
    out = home.run("models").stdout.decode()
    assert all(len(line) <= 80 for line in out.splitlines())
    for name in ("guide", "deepseek-v3.1", "kimi-k2-instruct-0905", "moonlight-16b-a3b-instruct"):
        assert f"\n{name} " in out
    listed = json.loads(home.run("models", "--json").stdout)["models"]
    entry = next(m for m in listed if m["name"] == "deepseek-v3.1")
    assert entry["size_bytes"] > 600e9
    assert (entry["present"], entry["path"]) == (False, None)


def test_a_download_under_way_is_shown_in_part(home, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--deepseek-ai--DeepSeek-V2-Lite-Chat/blobs"
    blobs.mkdir(parents=True)
    with (blobs / "abc.incomplete").open("wb") as file:
        file.truncate(16_000_000_000)
    assert "50 % of it" in table(local_models())


def test_doctor_reports_this_machine(home):
    done = home.run("doctor")
    out = done.stdout.decode()
    assert done.returncode in (0, 3)
    assert out.startswith("localmoe doctor ")
    assert all(len(line) <= 80 for line in out.splitlines())
    for label in ("CPU", "ISA", "cores", "NUMA", "DRAM", "disk", "GPU"):
        assert any(line.split()[1:2] == [label] for line in out.splitlines()), label
    report = json.loads(home.run("doctor", "--json").stdout)
    assert set(report) == {"machine", "checks", "models"}
    assert {"id", "status", "detail", "fix"} == set(report["checks"][0])
    assert {"name", "size_bytes", "present"} == set(report["models"][0])


def server(**changes) -> Machine:
    values = {
        "cpu": Cpu(
            "AMD EPYC 9355 32-Core Processor",
            2,
            64,
            128,
            ("avx2", "avx512f", "avx512bw", "avx512vl"),
            ("scalar", "avx2"),
        ),
        "nodes": (Node(0, (0,), 576 * GIB, GIB), Node(1, (1,), 576 * GIB, GIB)),
        "memory": Memory(1152 * GIB, 1100 * GIB, 64 * GIB, 60 * GIB, 0, "madvise"),
        "limits": Limits((0, 1), 8, 8.0, None),
        "disks": (),
        "gpus": (Gpu("NVIDIA GeForce RTX 5090", 32 * GIB, 30 * GIB, "12.0", PcieLink(4, 16), PcieLink(5, 16)),) * 2,
        "gpu_driver": "580.10",
        "container": None,
        "hypervisor": None,
        "unknown": (),
    }
    return Machine(**values | changes)


def test_a_server_is_described_in_a_line():
    assert doctor.title_of(server()) == "2x EPYC 9355 · 2x RTX 5090"


def test_limits_are_told():
    report = " ".join(doctor.report(server(), check_machine(server())).split())
    assert "64 cores in 2 sockets, 128 threads; 8 for this process (affinity, CPU quota 8)" in report
    assert "cgroup limit 68.7 GB" in report
    assert "2 nodes (618.5 GB, 618.5 GB)" in report
    assert "NVIDIA GeForce RTX 5090, 34.4 GB, compute 12.0, PCIe gen 4 x16 of gen 5 x16; not used yet" in report


def status_of(machine, check, isa=None):
    return next(c for c in check_machine(machine, isa) if c.id == check).status


def test_without_kernels_nothing_can_run():
    broken = server(cpu=Cpu("x", 1, 1, 1, (), ()), unknown=(("ISA", "no native module"),))
    assert status_of(broken, "isa") == "fail"
    assert status_of(server(), "isa") == "ok"
    assert status_of(server(), "isa", isa="scalar") == "warn"
    assert status_of(server(cpu=Cpu("x", 1, 1, 1, (), ("scalar",))), "isa", isa="avx2") == "fail"


def test_what_is_unknown_is_said_with_its_reason():
    bare = Machine(
        Cpu(None, None, None, None, (), ()),
        (),
        Memory(None, None, None, 0, None, None),
        Limits((), 1, None, None),
        (),
        (),
        None,
        None,
        None,
        (("CPU", "no model name"), ("DRAM", "no MemTotal"), ("GPU", "the NVIDIA driver is not loaded")),
    )
    report = doctor.report(bare, check_machine(bare))
    assert "unknown: no model name" in report
    assert "unknown: no MemTotal" in report
    assert "fix: load it: sudo modprobe nvidia" in report
