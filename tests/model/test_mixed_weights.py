"""Files whose tensors have different types: what a role's parts share is one matrix, else several, else a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from proof.cases import CASES
from tiny import gguf_file
from tiny.compare import TOLERANCE, row_errors
from tiny.lesson import lesson_config, lesson_weights

from kvist import LLM, CacheSpec
from kvist.errors import UnsupportedError
from kvist.reference import forward

MODEL = CASES["f32"].model
Forms = dict[str, str]


def write(monkeypatch: pytest.MonkeyPatch, path: Path, forms: Forms, others: str) -> dict[str, object]:
    """Write the model with each tensor whose name holds a key of ``forms`` in that form."""
    usual = gguf_file.kind_of

    def kind_of(name: str, array: object, weight_type: str) -> str:
        named = [form for part, form in forms.items() if part in name]
        return named[0] if named else usual(name, array, weight_type)

    monkeypatch.setattr(gguf_file, "kind_of", kind_of)
    return gguf_file.write_gguf(MODEL, path, others)


@pytest.mark.parametrize(
    ("forms", "others"),
    [
        ({"v_proj": "f16", "up_proj": "bf16"}, "f32"),
        ({"k_proj": "f32", "down": "f16", "embed": "bf16"}, "f16"),
    ],
)
def test_floats_of_several_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forms: Forms, others: str) -> None:
    found = write(monkeypatch, tmp_path / "model.gguf", forms, others)
    token_ids = MODEL.prompt(40)
    expected = forward(lesson_weights(MODEL.config, found), lesson_config(MODEL.config), token_ids)
    with LLM(tmp_path / "model.gguf", cache=CacheSpec("f32")) as llm:
        assert row_errors(llm.logits(token_ids), expected).max() < TOLERANCE


def test_blocks_of_several_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As files have them that keep some tensors in more bits."""
    forms = {"v_proj": "q8_0", "gate_proj": "q4_0", "down": "q8_0", "embed": "f16"}
    write(monkeypatch, tmp_path / "model.gguf", forms, "q4_1")
    token_ids = MODEL.prompt(40)
    with LLM(tmp_path / "model.gguf", cache=CacheSpec("f32")) as llm:
        logits = llm.logits(token_ids)
        assert set(llm._decoder.weight_types) == {"q8_0", "q4_0", "q4_1", "f16"}
    with LLM(tmp_path / "model.gguf", weights="f32", cache=CacheSpec("f32")) as wide:
        assert row_errors(logits, wide.logits(token_ids)).max() < 0.2  # what int8 inputs cost; zeros would be at 1


@pytest.mark.parametrize("forms", [{"v_proj": "f16"}, {"gate_proj": "f32"}], ids=str)
def test_blocks_and_floats_for_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forms: Forms) -> None:
    write(monkeypatch, tmp_path / "model.gguf", forms, "q8_0")
    with pytest.raises(
        UnsupportedError, match=r"quantised and not .* load all of them as one type with weights q8"
    ) as error:
        LLM(tmp_path / "model.gguf")
    assert "\n" not in str(error.value)
    with LLM(tmp_path / "model.gguf", weights="q8") as llm:
        assert llm.logits([1, 2]).shape == (2, 67)
