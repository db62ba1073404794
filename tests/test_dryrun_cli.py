"""``vramscope predict --dry-run``, and the Hugging Face models behind it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from vramscope.storage.records import MemoryClass, Phase

pytest.importorskip("transformers", reason="the models are built from transformers configurations")

from vramscope.app.cli.dry_run import dry_run
from vramscope.app.cli.errors import ScenarioNotUsable
from vramscope.app.cli.scenario_flags import ScenarioFlags
from vramscope.profiler.dryrun.__main__ import NOT_USABLE, main
from vramscope.profiler.dryrun.hugging_face import dry_run_config
from vramscope.profiler.dryrun.prediction import prediction_of
from vramscope.profiler.dryrun.settings import TrainingSettings

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
PARAMETERS = 2 * 512 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def vramscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from vramscope.app.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_classes_phases_peak_and_terms(config: Path) -> None:
    done = vramscope("predict", config, "--dry-run", "--micro-batch", "2", "--terms")
    assert done.returncode == 0, done.stderr
    for word in ("Parameters", "Activations", "forward", "backward", "optimizer", "Peak:", "Terms"):
        assert word in done.stdout
    assert "bfloat16" in done.stdout
    assert "workspaces: cuDNN" in done.stdout


def test_the_command_prints_json(config: Path) -> None:
    done = vramscope(
        "predict",
        "--model",
        config,
        "--dry-run",
        "--precision",
        "fp32",
        "--device",
        "cpu",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["method"] == "dry_run"
    assert told["phases"]["idle"]["parameters"] == PARAMETERS * 4
    assert told["phases"]["idle"]["gradients"] == PARAMETERS * 4
    assert sum(t["bytes"] for t in told["terms"]) == told["peak"]["allocated"]


def test_what_cannot_be_run_dry_is_said_in_one_message(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps(LLAMA | {"num_attention_heads": 5}))
    assert ended(config, monkeypatch) == NOT_USABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be run dry" in line


def ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How the process that the command starts would end."""
    monkeypatch.setattr("sys.argv", ["dryrun", str(path)])
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    with warnings.catch_warnings():
        return main()


def test_several_devices_are_refused_before_anything_is_run(config: Path) -> None:
    with pytest.raises(ScenarioNotUsable, match="A dry run is of one device"):
        dry_run(config, ScenarioFlags(devices=8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "nobody-knows"}, "model_type='nobody-knows': not a model"),
        ({"model_type": "x", "auto_map": {"AutoModel": "x"}}, "its code is not part of"),
        ({"quantization_config": {"bits": 4}}, "quantised checkpoints are not run dry"),
    ],
)
def test_a_model_that_is_not_run_dry_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dry_run_config(LLAMA | change, TrainingSettings())


def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text('{"batch": {"micro_batch": 1}}')
    assert ended(path, monkeypatch) == NOT_USABLE
    assert "names no model_type" in capsys.readouterr().err


def run(changes: dict[str, Any] | None = None, **settings: Any) -> Any:
    return dry_run_config(LLAMA | (changes or {}), TrainingSettings(device="cpu", **settings))


def test_the_configurations_type_and_longest_sequence_are_the_defaults() -> None:
    told = run()
    assert told.step.end.parameters == PARAMETERS * 2
    assert told.step.end.optimizer_state == PARAMETERS * 4 + 21 * 4


def test_checkpointing_keeps_less_and_accumulation_keeps_gradients() -> None:
    plain = run(micro_batch=4)
    checkpointed = run(micro_batch=4, checkpointing="full")
    assert sum(m.activations for m in checkpointed.modules) < sum(
        m.activations for m in plain.modules
    )
    several = run(micro_batch=4, accumulation=2)
    assert several.step.micro_steps == 2
    assert several.phase(Phase.FORWARD).gradients == PARAMETERS * 2


def test_attention_written_out_keeps_the_scores() -> None:
    def kept(attention: str) -> int:
        return sum(m.activations for m in run(micro_batch=4, attention=attention).modules)

    assert kept("eager") > kept("sdpa") + 2 * 4 * 4 * 64 * 64 * 2


def test_without_an_optimizer_nothing_is_trained() -> None:
    told = run(optimizer="none")
    assert told.step.peak.gradients == 0
    assert told.step.peak.optimizer_state == 0


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100},
        {"model_type": "t5", "d_model": 64, "vocab_size": 100, "decoder_start_token_id": 0},
        {"model_type": "vit", "hidden_size": 64, "num_attention_heads": 4, "image_size": 32},
        {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100},
    ],
    ids=lambda c: str(c["model_type"]),
)
def test_any_model_that_transformers_builds(config: dict[str, Any]) -> None:
    told = dry_run_config(config, TrainingSettings(sequence=16))
    assert (told.step.peak.allocated or 0) > 4 * (told.step.end.parameters or 0) * 0.99


def test_the_terms_are_those_of_the_peak() -> None:
    told = run(micro_batch=2)
    prediction = prediction_of(told, {})
    assert sum(t.bytes for t in prediction.terms) == told.step.peak.allocated
    assert MemoryClass.PARAMETERS in {t.memory_class for t in prediction.terms}
    assert prediction.phases[Phase.IDLE] == told.step.end
    assert prediction.not_modelled == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"colour": "red"}, "colour: not known to a dry run"),
        ({"micro_batch": 0}, "micro_batch must be at least 1, got 0"),
        ({"sequence": "long"}, "sequence='long': must be"),
        ({"attention": "flash"}, "attention='flash': a dry run knows sdpa, eager"),
    ],
)
def test_settings_are_checked(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingSettings.from_mapping(data)
