"""`localmoe doctor` as people see it: the catalogue on their machine, one model's plan, and what `--json` says."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from machines import PAPER, survey, write_model
from process import MAIN
from recorded import NAMES

from localmoe.cli.doctor.command import outlooks_of, page
from localmoe.cli.doctor.one_model import report_model
from localmoe.engine.outlook import outlooks
from localmoe.errors import NotReadyError
from localmoe.hub.catalog import load_catalog
from localmoe.hub.checkpoint import INDEX
from localmoe.settings import Settings
from localmoe.tui.forecasts import duration, gigabytes, kilo, speed

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
from small_hub import serving

SMALL = 16 * 1024  # tokens
BIG = tiny.DEEPSEEK_V3 | {"moe_intermediate_size": 1 << 20}

MEASURED = f"""
import localmoe.bench.machine
from localmoe.engine.measured import Measured
def measure_and_save(machine, settings, listener):
    listener.progress("the streaming read")
    listener.warn("not everything")
    return Measured("2026-11-30T00:00:00", "1", "avx2", 2, stream_bytes_s=871e9)
localmoe.bench.machine.measure_and_save = measure_and_save
{MAIN}"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No model on this machine."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def model_page(capsys, name, model, *, settings=None, explain=False):
    code = report_model(survey(name, settings or Settings()), str(model), explain=explain, as_json=False)
    return code, capsys.readouterr().out


def model_json(capsys, name, model, **settings):
    report_model(survey(name, Settings(**settings)), str(model), explain=False, as_json=True)
    return json.loads(capsys.readouterr().out)


def rows(lines, start):
    """The line that begins with `start`, as words."""
    return next(line.split() for line in lines if line.strip().startswith(start))


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_gets_a_page_of_80_columns(name):
    one = survey(name)
    lines = list(page(one, outlooks_of(one, ["guide"])))
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert lines[-1] == " ~ are estimates from data sheets: `localmoe doctor --measure` measures"


def test_notes_with_long_names_are_wrapped(capsys):
    _, out = model_page(capsys, PAPER, "kimi-k2-instruct-0905")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "the models' disk has no room for kimi-k2-instruct-0905: 929.2 GB more would do" in " ".join(out.split())


def test_a_forced_plan_is_shown_for_models_that_fit_into_memory_too():
    one = survey("epyc-9354p-nps4", Settings(plan="disk"))
    lines = list(page(one, outlooks_of(one, ["deepseek-v3"])))
    for name in ("guide", "deepseek-v3"):
        assert rows(lines, name)[1:4] == ["disk", "+", "DRAM"]


def test_a_forced_plan_that_a_model_cannot_have_is_told():
    one, entry = survey(PAPER, Settings(plan="slp")), load_catalog()["guide"]
    dense = replace(entry, shape=entry.config | {"first_k_dense_replace": entry.config["num_hidden_layers"]})
    entries = [dense, load_catalog()["deepseek-v3"]]
    lines = list(page(one, outlooks(one.machine, one.settings, one.rates, entries)))
    assert rows(lines, "guide")[1:] == ["no", "–", "–", "–"]
    assert rows(lines, "deepseek-v3")[1:5] == ["DRAM", "+", "1", "GPU"]
    assert " the plan slp needs a GPU: the model has no routed experts to stream" in lines


def test_the_papers_machine():
    one = survey(PAPER)
    lines = list(page(one, outlooks_of(one, [])))
    assert " model                      fits              TTFT 32K       decode  30 s/20 t/s" in lines
    row = rows(lines, "deepseek-r1-0528")
    assert row[1:5] == ["DRAM", "+", "2", "GPUs"]
    assert row[5].startswith("~") and row[-3:] == ["yes", "/", "yes"]
    assert rows(lines, "moonlight-16b-a3b-instruct")[7] == "8K"  # the longest prompt that it takes
    assert any("have not run on a real card yet" in line for line in lines)
    assert " the models' disk has no room for 7 of these models: 929.2 GB more would do" in lines


def test_a_machine_that_is_too_small():
    one = survey("laptop-1260p-16gb")
    lines = list(page(one, outlooks_of(one, [])))
    assert rows(lines, "deepseek-v3.1")[1:] == ["no:", "671", "GB", "more", "–", "–", "–"]
    assert rows(lines, "kimi-k2")[1:4] == ["no:", "1.0", "TB"]
    assert rows(lines, "moonlight")[1:4] == ["disk", "+", "DRAM"]
    assert rows(lines, "moonlight")[-3:] == ["no", "/", "no"]
    assert any("disk + DRAM runs with --plan disk" in line for line in lines)


def test_one_model_on_the_papers_machine(capsys):
    code, out = model_page(capsys, PAPER, "deepseek-r1")
    lines = out.splitlines()
    assert code == 0
    assert all(len(line) <= 80 for line in lines)
    assert lines[2] == "deepseek-r1: 671 B, 37 B active, FP8; not on this machine: 688.6 GB in all"
    for what in ("plan", "prefill", "decode", "ring", "NUMA", "kernels", "threads", "context", "latent cache"):
        assert any(line.startswith(f" {what} ") for line in lines), what
    for prompt in ("1K", "8K", "32K", "128K"):
        assert len([line for line in lines if line.startswith(f" {prompt} ")]) >= 1
    assert "1 stream        2 streams        4 streams" in out
    assert " more than 8,192 tokens need a longer --context" in lines
    assert "routed experts are 97% of the weights" in out
    assert "saves 654.1 GB against one for each" in " ".join(out.split())
    assert " a prompt of 32K within 30 s: yes; 20 tok/s: yes" in lines
    assert "1 finding about this machine: see `localmoe doctor`" in out


def test_memory_adds_up(capsys):
    report = model_json(capsys, PAPER, "deepseek-r1")
    plan = report["plan"]
    assert {item["place"] for item in plan["items"]} == {"DRAM", "GPU 0", "GPU 1"}
    for place, room in plan["memory"].items():
        assert sum(item["num_bytes"] for item in plan["items"] if item["place"] == place) == room["needed_bytes"]
        assert room["needed_bytes"] <= room["available_bytes"]
    assert all(len(decision) > 20 for decision in plan["decisions"])
    assert plan["shared"]["saved_bytes"] == plan["shared"]["routed_bytes"]


def test_json_of_one_model(capsys):
    report = model_json(capsys, PAPER, "deepseek-r1")
    (entry,) = report["models"]
    assert (entry["name"], entry["fits"], entry["state"], entry["source"]) == (
        "deepseek-r1",
        "yes",
        "absent",
        "the catalogue",
    )
    assert [row["tokens"] for row in report["predictions"]["prefill"]] == [1024, 8192, 32768, 131072]
    assert {row["streams"] for row in report["predictions"]["decode"]} == {1, 2, 4}
    (long,) = [row for row in report["predictions"]["prefill"] if row["tokens"] == 32768]
    assert entry["predicted"]["ttft_32k_s"] == long["ttft_s"]


def test_explaining_shows_terms_and_the_papers_machine(capsys):
    _, out = model_page(capsys, PAPER, "deepseek-v3.1", explain=True)
    assert all(len(line) <= 80 for line in out.splitlines())
    for prompt in ("1K", "8K", "32K", "128K"):
        assert f"\n a prompt of {prompt}\n  prefill: " in out
    assert "\n a token after 1K\n  step: " in out
    assert "the longest of" in out
    assert "paper 1 GPU" in out and "localmoe 2 GPUs" in out
    assert rows(out.splitlines(), "decode at 1K")[3] == "21.5"  # as the paper published it


def test_explaining_a_model_of_another_shape(capsys):
    _, out = model_page(capsys, PAPER, "kimi-k2-instruct-0905", explain=True)
    assert "a token after" in out
    assert "paper" not in out


def test_a_model_that_cannot_run(capsys):
    with pytest.raises(NotReadyError, match="deepseek-v3 needs") as caught:
        model_page(capsys, "laptop-1260p-16gb", "deepseek-v3")
    assert caught.value.exit_code == 3
    assert "GB more memory would do" in caught.value.hint
    assert "deepseek-v3: 671 B" in capsys.readouterr().out


def test_json_of_a_model_that_cannot_run(capsys):
    with pytest.raises(NotReadyError):
        model_json(capsys, "laptop-1260p-16gb", "deepseek-v3")
    report = json.loads(capsys.readouterr().out)
    assert (report["plan"], report["predictions"]) == (None, None)
    assert report["models"][0]["fits"] == "no"
    assert report["models"][0]["missing_bytes"] > 600e9


def test_settings_reach_the_plan(capsys):
    report = model_json(capsys, PAPER, "deepseek-r1", plan="slp", context=SMALL)
    assert (report["plan"]["kind"], report["plan"]["context_limit"]) == ("slp", SMALL)
    assert report["plan"]["gpus"] in ([0], [1])


def test_a_folder_in_which_nothing_was_downloaded(capsys, tmp_path):
    index = {"metadata": {"total_size": 690e9}, "weight_map": {"a": "model-00001.safetensors"}}
    folder = write_model(tmp_path / "mine", tiny.DEEPSEEK_V3, index)
    _, out = model_page(capsys, PAPER, folder)
    assert "mine: 671 B, 37 B active, FP8; only in part on this machine: 690.0 GB in all" in " ".join(out.split())


def test_amounts():
    assert [duration(s) for s in (0.05, 16.1, 59.99, 754, 9000)] == ["50 ms", "16.1 s", "1.0 min", "12.6 min", "2.5 h"]
    assert [speed(s) for s in (0.123, 1.0, 24.04, 118.4, 2978)] == [
        "0.12 tok/s",
        "1.0 tok/s",
        "24.0 tok/s",
        "118 tok/s",
        "2,978 tok/s",
    ]
    assert [gigabytes(n * 10**9) for n in (1, 9.94, 654, 1017)] == ["1.0 GB", "9.9 GB", "654 GB", "1.0 TB"]
    assert [kilo(n) for n in (100, 1024, 1536, 131072)] == ["100", "1K", "1.5K", "128K"]


def test_doctor_reports_this_machine(home):
    done = home.run("doctor")
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert out.startswith("localmoe doctor ")
    assert all(len(line) <= 80 for line in out.splitlines())
    for label in ("CPU", "ISA", "cores", "NUMA", "DRAM", "DIMMs", "THP", "memlock", "maps", "disk", "model"):
        assert any(label in line.split()[:2] for line in out.splitlines()), label
    assert done.stderr == b""


def test_doctors_json(home):
    report = json.loads(home.run("doctor", "--json").stdout)
    assert set(report) == {"machine", "checks", "measured", "models", "notes"}
    assert {"id", "status", "detail", "fix"} == set(report["checks"][0])
    guide = report["models"][0]
    assert (guide["name"], guide["fits"], guide["present"]) == ("guide", "yes", True)
    assert set(guide["predicted"]) >= {"prefill_tok_s", "ttft_32k_s", "decode_tok_s"}


def test_the_embedded_models_plan(home):
    done = home.run("doctor", "-m", "guide", "--plan", "cpu", "--context", "2048")
    assert done.returncode == 0, done.stderr
    assert b"guide: 12 M, 5.4 M active, FP8; on this machine" in done.stdout
    assert b"2,048 tokens; chosen by --context" in done.stdout


def test_measuring_goes_first_and_is_told(home):
    done = home.run_with_terminal("doctor", "--measure", program=MEASURED)
    code, out, seen = done
    assert code == 0
    assert "read 871.0 GB/s (measured)" in out.decode()
    assert "measuring the streaming read" in seen and "not everything" in seen
    assert out.startswith(b"localmoe doctor")
    quiet = home.run("doctor", "--measure", "--json", program=MEASURED)
    assert json.loads(quiet.stdout)["measured"]["stream_bytes_s"] == 871e9
    assert quiet.stderr == b"not everything\n"


def test_exit_codes(home, tmp_path):
    big = write_model(tmp_path / "big", BIG)
    done = home.run("doctor", "-m", str(big))
    assert done.returncode == 3
    first, hint = done.stderr.decode().splitlines()
    assert first.startswith("localmoe: big needs ") and hint.startswith("hint: ")
    assert home.run("doctor", "-m", "no-such-model").returncode == 4
    assert home.run("doctor", "-m", "some/repo", HF_HUB_OFFLINE="1").returncode == 7
    assert home.run("doctor", "--plan", "magic").returncode == home.run("doctor", "--explain").returncode == 2
    other = write_model(tmp_path / "other", tiny.DEEPSEEK_V3 | {"model_type": "llama"})
    assert home.run("doctor", "-m", str(other)).returncode == 4


def test_a_repository_of_the_hub_is_planned_for_without_its_weights(home):
    files = {
        "someone/Their-MoE/config.json": json.dumps(tiny.V3).encode(),
        f"someone/Their-MoE/{INDEX}": json.dumps({"metadata": {"total_size": 5_000_000}}).encode(),
    }
    with serving(files) as hub:
        done = home.run("doctor", "-m", "someone/Their-MoE", HF_ENDPOINT=hub.endpoint)
    assert done.returncode == 0, done.stderr
    assert "someone/Their-MoE: 1.5 M" in done.stdout.decode()
    assert "not on this machine: 5.0 MB in all" in " ".join(done.stdout.decode().split())
    assert not any("safetensors/" in line or line.endswith(".safetensors") for line in hub.seen)
    assert not (home.folder / ".cache" / "huggingface" / "hub" / "models--someone--Their-MoE").exists()


@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "-m", "deepseek-v3", "--json")])
def test_doctor_imports_neither_torch_nor_a_screen(home, arguments):
    tried = MAIN.replace("main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    done = home.run(*arguments, program=f"{tried}\nimport sys; sys.stderr.write(' '.join(sys.modules))")
    loaded = set(done.stderr.decode().splitlines()[-1].split())
    assert "localmoe.engine.outlook" in loaded
    assert not loaded & {"torch", "triton", "textual", "rich", "transformers", "huggingface_hub"}
