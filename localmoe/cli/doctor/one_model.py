"""`localmoe doctor -m MODEL`: whether it can run, how, and how fast."""

import json
from collections.abc import Iterator
from typing import Any

from localmoe.cli.doctor.check import many
from localmoe.cli.doctor.command import Survey, footnotes, machine_json, notes_json
from localmoe.cli.doctor.explain import explain_lines
from localmoe.cli.doctor.model_page import model_lines
from localmoe.cli.doctor.page import head
from localmoe.cli.doctor.table import table_json
from localmoe.cli.streams import to_stdout
from localmoe.engine.cost.predict import Prediction
from localmoe.engine.outlook import Outlook, outlook
from localmoe.engine.plan import forecast
from localmoe.engine.plan_json import plan_object
from localmoe.errors import NotReadyError
from localmoe.hub.small_files import SmallFiles, find_small_files
from localmoe.model.config import read_config


def report_model(survey: Survey, model: str, *, explain: bool, as_json: bool) -> int:
    """Prints plan and predictions; NotReadyError with the smallest change when it cannot run."""
    files = find_small_files(model)
    config = read_config(files.config)
    one = outlook(survey.machine, survey.settings, survey.rates, files.name, config, on_disk=files.state == "present")
    prediction = forecast(one.plan, survey.rates, config) if one.plan else None
    if as_json:
        to_stdout(json.dumps(model_json(survey, files, one, prediction)) + "\n")
    else:
        to_stdout("\n".join(model_report(survey, files, one, prediction, explain=explain)) + "\n")
    if one.refusal:
        raise NotReadyError(one.refusal.message, one.refusal.hint) from one.refusal
    return 0


def model_report(
    survey: Survey, files: SmallFiles, one: Outlook, prediction: Prediction | None, *, explain: bool
) -> Iterator[str]:
    """For people, within 80 columns."""
    yield from head(survey.machine)
    yield from model_lines(files, one, prediction)
    if explain and prediction:
        yield from explain_lines(prediction, one.config)
    notes = list(footnotes(survey, (one,)))
    if findings := sum(check.status != "ok" for check in survey.checks):
        notes.insert(0, f" {many(findings, 'finding')} about this machine: see `localmoe doctor`")
    if notes:
        yield ""
    yield from notes


def model_json(survey: Survey, files: SmallFiles, one: Outlook, prediction: Prediction | None) -> dict[str, Any]:
    """What `--json` prints: as for the catalogue, with one model, its plan and all predictions."""
    entry = table_json(one) | {"source": files.source, "state": files.state, "total_bytes": files.total_bytes}
    return machine_json(survey) | {
        "models": [entry],
        "notes": notes_json(survey, (one,)),
        "plan": plan_object(one.plan) if one.plan else None,
        "predictions": prediction_json(prediction) if prediction else None,
    }


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Prompts and contexts."""
    return {
        "prefill": [
            {"tokens": f.num_tokens, "way": f.way, "ttft_s": f.ttft_s, "tok_s": f.tok_s} for f in prediction.prefill
        ],
        "decode": [{"context": f.context, "streams": f.num_streams, "tok_s": f.tok_s} for f in prediction.decode],
        "crossover_tokens": prediction.crossover_tokens,
    }
