"""`localmoe ask` with the engine and a random checkpoint: nothing is scripted here."""

import json
import signal

import pytest
from process import MAIN
from safetensors.torch import load_file, save_file
from tiny import SHAPES, make_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_checkpoint(tmp_path_factory.mktemp("model"), **SHAPES["v3"]))


def test_the_same_seed_gives_the_same_answer(home, model):
    def ids(*flags):
        done = home.run("ask", "-m", model, "--json", "--ids", "--max-tokens", "12", *flags, "Hi")
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout)["output_ids"]

    assert ids("--seed", "3") == ids("--seed", "3")
    assert ids("--temperature", "0") == ids("--temperature", "0", "--threads", "1")


def test_an_answer_never_imports_torch_nor_textual(home, model):
    program = MAIN.replace("main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    report = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = home.run("ask", "-m", model, "--max-tokens", "4", "Hi", program=program + report)
    loaded = set(done.stderr.decode().split())
    assert "localmoe.engine.engine" in loaded
    assert not loaded & {"torch", "textual", "rich", "transformers", "huggingface_hub", "triton"}


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that never ends an answer by itself: some other token always has a logit above EOS' zero."""
    folder = make_checkpoint(tmp_path_factory.mktemp("endless"), num_hidden_layers=8)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][1] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def test_an_interrupt_keeps_what_was_said(home, endless):
    process = home.start("ask", "-m", endless, "--json", "--stream", "--temperature", "0", "Hi")
    for line in process.stdout:
        if b"TextDelta" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    answer = json.loads(out.splitlines()[-1])
    assert answer["finish_reason"] == "cancelled"
    assert answer["text"]


def test_an_interrupt_after_the_end_changes_nothing(home, model):
    at_exit = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT));"
    done = home.run("ask", "-m", model, "--max-tokens", "2", "Hi", program=at_exit + MAIN)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_pipe_ends_the_answer(home, model):
    process = home.start("ask", "-m", model, "--json", "--stream", "Hi")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == b""


def test_a_prompt_that_is_too_long_is_refused(home, model):
    done = home.run("ask", "-m", model, "--context", "64", "word " * 100)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "the context holds 64" in done.stderr.decode().splitlines()[0]


def test_a_full_context_is_said(home, model):
    done = home.run("ask", "-m", model, "--context", "64", "--temperature", "2", "--json", "Hi")
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] in ("context", "stop")
    assert done.returncode == 0
    if answer["finish_reason"] == "context":
        assert "the context of 64 tokens is full" in done.stderr.decode()


def test_damaged_weights_end_with_4(home, model, tmp_path):
    damaged = make_checkpoint(tmp_path / "damaged", **SHAPES["v3"])
    file = next(damaged.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])
    done = home.run("ask", "-m", str(damaged), "Hi")
    assert (done.returncode, done.stdout) == (4, b"")
    assert len(done.stderr.decode().splitlines()) == 2


def test_an_unknown_kernel_target_ends_with_2(home, model):
    done = home.run("ask", "-m", model, "Hi", LOCALMOE_ISA="sse9")
    assert done.returncode == 2
    assert "LOCALMOE_ISA must be scalar or avx2 or avx2_zen or avx512" in done.stderr.decode()


def test_the_chosen_kernels_run(home, model):
    done = home.run("ask", "-m", model, "--json", "--max-tokens", "2", "Hi", LOCALMOE_ISA="scalar")
    assert json.loads(done.stdout)["plan"]["isa"] == "scalar"


def test_a_plan_can_be_forced_and_is_printed(home, model):
    done = home.run("ask", "-m", model, "--json", "--max-tokens", "2", "--plan", "cpu", "Hi")
    plan = json.loads(done.stdout)["plan"]
    assert plan["kind"] == "cpu" and "plan: cpu; chosen by --plan" in plan["decisions"]
    assert plan["memory"]["DRAM"]["needed_bytes"] == sum(item["num_bytes"] for item in plan["items"])


@pytest.mark.parametrize("kind", ["slp", "dslp"])
def test_a_plan_that_cannot_run_is_refused_with_one_that_can(home, model, kind):
    done = home.run("ask", "-m", model, "--plan", kind, "Hi")
    assert done.returncode == 2 and done.stdout == b""
    what, hint = done.stderr.decode().splitlines()
    assert what.startswith(f"localmoe: the plan {kind} needs ")
    assert hint.startswith("hint: --plan cpu needs none")
    done = home.run("ask", "-m", model, "--plan", "gpu", "Hi")
    assert done.returncode == 2 and b"auto or cpu or slp or dslp or disk" in done.stderr
