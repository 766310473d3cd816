"""What a plan is asked: checked once, here."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.errors import SpecError
from kvist.planner.engine import Engine, KvistEngine
from kvist.planner.hardware import Device
from kvist.planner.weight_types import check_weight_type
from kvist.spec.cache import CacheSpec
from kvist.spec.state import check_state_codec

MAX_TOKENS = 1 << 40
MAX_DEVICES = 1 << 20


@dataclass(frozen=True)
class PlanSettings:
    """The question.

    ``context`` None is the trained length. ``memory_bytes`` is one device's, and goes before the device's own;
    ``kv_memory_bytes`` is what the cache may take, whatever the weights. ``utilisation`` is the share of memory that
    may be used at all, ``overhead_bytes`` None the engine's own estimate. ``window`` caps what every layer keeps.
    ``num_devices`` beyond ``tensor_parallel`` hold replicas.
    """

    context: int | None = None
    cache: CacheSpec = field(default_factory=CacheSpec)
    state_codec: str = "f32"
    encoder_tokens: int | None = None
    engine: Engine = field(default_factory=KvistEngine)
    tensor_parallel: int = 1
    num_devices: int | None = None
    device: Device | None = None
    memory_bytes: int | None = None
    kv_memory_bytes: int | None = None
    utilisation: float = 0.9
    overhead_bytes: int | None = None
    weight_type: str | None = None
    weight_bytes: int | None = None
    users: int | None = None
    window: int | None = None
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_range("--context", self.context, 1, MAX_TOKENS)
        _check_range("--encoder-tokens", self.encoder_tokens, 0, MAX_TOKENS)
        _check_range("--users", self.users, 1, MAX_TOKENS)
        _check_range("--window", self.window, 1, MAX_TOKENS)
        _check_range("--prompt", self.prompt_tokens, 1, MAX_TOKENS)
        _check_range("--tp", self.tensor_parallel, 1, MAX_DEVICES)
        _check_range("--devices", self.num_devices, 1, MAX_DEVICES)
        for option in ("memory_bytes", "kv_memory_bytes", "weight_bytes"):
            _check_range("--" + option.removesuffix("_bytes").replace("_", "-"), getattr(self, option), 1, 1 << 60)
        _check_range("--overhead", self.overhead_bytes, 0, 1 << 60)
        check_state_codec(self.state_codec, "--state-dtype")
        if self.weight_type is not None:
            check_weight_type(self.weight_type, "--weights")
        if not 0 < self.utilisation <= 1:
            raise SpecError(f"--utilisation must be above 0 and at most 1, got {self.utilisation}")
        if self.num_devices is not None and self.num_devices % self.tensor_parallel:
            raise SpecError(f"--devices {self.num_devices} must be a multiple of --tp {self.tensor_parallel}")
        self.engine.check(self.cache)
        if self.state_codec not in self.engine.state_codecs:
            raise SpecError(
                f"{self.engine.name} keeps recurrent states in {' or '.join(self.engine.state_codecs)} only"
            )

    @property
    def num_replicas(self) -> int:
        return (self.num_devices or self.tensor_parallel) // self.tensor_parallel

    @property
    def has_memory(self) -> bool:
        """Whether there is something to fit into."""
        return bool(self.device or self.memory_bytes or self.kv_memory_bytes)


def _check_range(option: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise SpecError(f"{option} must be between {least} and {most}, got {value}")
