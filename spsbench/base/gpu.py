"""A GPU as its driver knows it: what it is, its state now, and what took its time from a run.

NVML (package nvidia-ml-py) is asked where it is installed, else nvidia-smi, once for each reading. What a
driver does not say is None. Nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

import psutil

from spsbench.base.environment import TAKERS, smi_rows

FACTS = (
    "index",
    "uuid",
    "name",
    "mig",
    "memory_bytes",
    "driver",
    "persistence",
    "ecc",
    "power_limit_w",
    "power_limit_default_w",
    "sm_clock_most_mhz",
    "memory_clock_most_mhz",
)
"""What does not change while a run measures; ``index`` is the driver's, which hides no board."""

STATE = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")

SM_CLOCK = "sm_clock_mhz"
OTHERS = "gpu_others"
THROTTLED = "throttled_by_"
"""Of ``Sample.conditions``, as the sequence ended: the clock, other processes on the board, and 1 for each
of ``REASONS`` that held the clocks down."""

REASONS = {
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of NVML's clock event reasons; that it idles is none that matters."""

_POLICIES = ("NVML_PERF_POLICY_THERMAL", "NVML_PERF_POLICY_BOARD_LIMIT", "NVML_PERF_POLICY_RELIABILITY")
"""Why clocks are below those that were set, without the run's doing: at full load a power limit is that."""

_LONGEST_S = 1.0
"""A sample of utilisation stands for so long at most; the driver takes several a second."""

_SM, _MEMORY, _CORE_TEMPERATURE = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


class Board(Protocol):
    """Answers what a driver says of one GPU; ``source`` says by what."""

    source: str

    def facts(self) -> dict[str, Any]:
        """All of ``FACTS``."""

    def state(self) -> dict[str, float | None]:
        """All of ``STATE``."""


NO_NVML = "no NVML"


class NoNvml(Exception):
    """NVML is not installed, or has no such board; its text says which."""


def nvml_of(uuid: str | None) -> tuple[Any, Any]:
    """Return NVML and its handle of a board or MIG slice; for None that of the first board.

    Raises:
        NoNvml: there is none.
    """
    try:
        nvml = import_module("pynvml")
    except ImportError:
        raise NoNvml(NO_NVML) from None
    try:
        nvml.nvmlInit()
        if uuid is None:
            return nvml, nvml.nvmlDeviceGetHandleByIndex(0)
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as problem:
        raise NoNvml(f"NVML: {problem}") from problem


class NvmlBoard:
    """One board, or a MIG slice of it, by NVML; seconds that were taken count from some moment on."""

    source = "NVML"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        # A slice has its own name and memory; clocks and power are the whole board's.
        self._board = self._nvml_value("DeviceHandleFromMigDeviceHandle") or handle
        self._seen_us: dict[int, int] = {}
        self._shared_s = 0.0

    def _nvml_value(self, what: str, *arguments: Any, board: Any = None) -> Any:
        """None where driver or package lack the call ``nvmlDeviceGet...``."""
        with suppress(self._nvml.NVMLError, AttributeError):
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(board or self._handle, *arguments)
        return None

    def facts(self) -> dict[str, Any]:
        board, driver = self._board, None
        with suppress(self._nvml.NVMLError, AttributeError):
            driver = self._nvml.nvmlSystemGetDriverVersion()
        mig, ecc = (self._nvml_value(f"{name}Mode", board=board) for name in ("Mig", "Ecc"))
        persistence = self._nvml_value("PersistenceMode", board=board)
        memory = self._nvml_value("MemoryInfo")
        by_name = {
            "index": self._nvml_value("Index", board=board),
            "uuid": self._nvml_value("UUID"),
            "name": self._nvml_value("Name"),
            "mig": None if mig is None else bool(mig[0]),
            "memory_bytes": None if memory is None else int(memory.total),
            "driver": driver,
            "persistence": None if persistence is None else bool(persistence),
            "ecc": None if ecc is None else bool(ecc[0]),
            "power_limit_w": _watts(self._nvml_value("PowerManagementLimit", board=board)),
            "power_limit_default_w": _watts(self._nvml_value("PowerManagementDefaultLimit", board=board)),
            "sm_clock_most_mhz": self._nvml_value("MaxClockInfo", _SM, board=board),
            "memory_clock_most_mhz": self._nvml_value("MaxClockInfo", _MEMORY, board=board),
        }
        return {name: v.decode() if isinstance(v, bytes) else v for name, v in by_name.items()}

    def state(self) -> dict[str, float | None]:
        board = self._board
        return {
            "sm_clock_mhz": self._nvml_value("ClockInfo", _SM, board=board),
            "memory_clock_mhz": self._nvml_value("ClockInfo", _MEMORY, board=board),
            "temperature_c": self._nvml_value("Temperature", _CORE_TEMPERATURE, board=board),
            "power_w": _watts(self._nvml_value("PowerUsage", board=board)),
        }

    def of_sequence(self) -> dict[str, float]:
        """Return ``SM_CLOCK``, ``OTHERS`` and what throttles now, as far as they are known."""
        readings: dict[str, float] = {}
        if (clock := self._nvml_value("ClockInfo", _SM, board=self._board)) is not None:
            readings[SM_CLOCK] = float(clock)
        bits = self._nvml_value("CurrentClocksEventReasons", board=self._board)
        if bits is None:  # its name before driver 535
            bits = self._nvml_value("CurrentClocksThrottleReasons", board=self._board)
        readings |= {f"{THROTTLED}{name}": 1.0 for bit, name in REASONS.items() if (bits or 0) & bit}
        if (others := self._others(_own_process_ids())) is not None:
            readings[OTHERS] = float(len(others))
        return readings

    def throttled_s(self) -> float | None:
        """Return the seconds for which heat, power or reliability lowered the clocks; None if unknown."""
        names = (getattr(self._nvml, policy, None) for policy in _POLICIES)
        statuses = [self._nvml_value("ViolationStatus", policy) for policy in names if policy is not None]
        known_ns = [status.violationTime for status in statuses if status is not None]
        return sum(known_ns) / 1e9 if known_ns else None

    def _others(self, own: set[int]) -> set[int] | None:
        """List processes that compute on the board and are not the run's ``own``.

        In a container the driver may give processes numbers of its host: then none is known to be another.
        """
        running = {process.pid for process in self._nvml_value("ComputeRunningProcesses") or ()}
        return running - own if own & running else None

    def shared_s(self) -> float | None:
        """Return the seconds in which others computed there, by the driver's samples; None if unknown."""
        nvml, family = self._nvml, _own_process_ids()
        if self._others(family) is None:
            return None
        try:
            since_us = max(self._seen_us.values(), default=0)
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
        except nvml.NVMLError:  # also where there is no sample since the last look
            return self._shared_s if self._seen_us else None
        for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
            before_us = self._seen_us.get(sample.pid, sample.timeStamp)
            self._seen_us[sample.pid] = sample.timeStamp
            if sample.pid not in family:
                lasted_s = min((sample.timeStamp - before_us) / 1e6, _LONGEST_S)
                self._shared_s += sample.smUtil / 100 * lasted_s
        return self._shared_s


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def _own_process_ids() -> set[int]:
    """Of this process and of those that it started."""
    with suppress(psutil.Error):
        return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return {os.getpid()}


def _mebibytes(text: str) -> int:
    return int(text) << 20


_SWITCH = {"Enabled": True, "Disabled": False}

_QUERY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", int),
    "uuid": ("uuid", str),
    "name": ("name", str),
    "mig": ("mig.mode.current", _SWITCH.__getitem__),
    "memory_bytes": ("memory.total", _mebibytes),
    "driver": ("driver_version", str),
    "persistence": ("persistence_mode", _SWITCH.__getitem__),
    "ecc": ("ecc.mode.current", _SWITCH.__getitem__),
    "power_limit_w": ("power.limit", float),
    "power_limit_default_w": ("power.default_limit", float),
    "sm_clock_most_mhz": ("clocks.max.sm", int),
    "memory_clock_most_mhz": ("clocks.max.memory", int),
    "sm_clock_mhz": ("clocks.current.sm", int),
    "memory_clock_mhz": ("clocks.current.memory", int),
    "temperature_c": ("temperature.gpu", int),
    "power_w": ("power.draw", float),
}
"""Of each fact nvidia-smi's field and how it is read."""


class SmiBoard:
    """One board by nvidia-smi, a process of half a second or so for each reading: never between sequences."""

    source = "nvidia-smi"

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row: Mapping[str, Any] | None = row
        self._facts = {name: row[name] for name in FACTS}

    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    def state(self) -> dict[str, float | None]:
        """The first one is that of the query that found the board."""
        row, self._row = self._row, None
        row = row or _nvidia_smi_row([self._facts["uuid"]]) or {}
        return {name: row.get(name) for name in STATE}


def _nvidia_smi_row(uuids: Sequence[str]) -> dict[str, Any] | None:
    """Of the board with one of these UUIDs; with one board, of a MIG slice of it too.

    Slices are not listed by it, and torch may not say what a device is called by.
    """
    fields = [field for field, _ in _QUERY.values()]
    rows = [_facts_of_line(row) for row in smi_rows(fields, "csv,noheader,nounits")]
    matching = [row for row in rows if row["uuid"] in uuids]
    alone = [row for row in rows if len(rows) == 1 and (row["mig"] or not uuids)]
    return next(iter([*matching, *alone]), None)


def _facts_of_line(cells: Sequence[str]) -> dict[str, Any]:
    """None for ``[N/A]`` and ``[Not Supported]``."""
    facts: dict[str, Any] = dict.fromkeys(_QUERY)
    for (name, (_, read)), cell in zip(_QUERY.items(), cells, strict=True):
        if not cell.startswith("["):
            with suppress(ValueError, KeyError):
                facts[name] = read(cell)
    return facts


def board_of(uuid: str | None) -> NvmlBoard | SmiBoard | None:
    """Return what can be queried of a board, by its UUID without prefix; None if nothing answers."""
    names = [] if uuid is None else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        with suppress(NoNvml):
            return NvmlBoard(*nvml_of(name))
    row = _nvidia_smi_row(names)
    return None if row is None else SmiBoard(row)


def described(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List (name, value) of a GPU in run.json for a reader; unknown values are left out."""
    states = [(when, record[when]) for when in ("now", "before", "after") if record.get(when)]
    software = (
        ("driver", "driver {}"),
        ("cuda", "CUDA {}"),
        ("cudnn", "cuDNN {}"),
        ("capability", "compute capability {}"),
    )
    attention = record.get("attention") or {}
    kinds = dict.fromkeys(value for role, value in attention.items() if role in ("target", "draft"))
    precision: list[str | None] = [
        _switched("TF32", record.get("tf32_matmul")),
        f"attention {' and '.join(kinds)}" if kinds else None,
        _switched("graphs", record.get("graphs")),
        _switched("torch.compile", record.get("compiled")),
    ]
    parts_of: dict[str, list[str | None]] = {
        "GPU software": [text.format(record[name]) for name, text in software if record.get(name)],
        "GPU power": [
            _power_limit_text(record.get("power_limit_w"), record.get("power_limit_default_w")),
            *(_switched(text, record.get(name)) for name, text in _SWITCHES.items()),
        ],
        "GPU clocks": [
            *(
                f"{when} {state['sm_clock_mhz']:,.0f} MHz{_temperature_text(state)}"
                for when, state in states
                if state.get("sm_clock_mhz") is not None
            ),
            None if (most := record.get("sm_clock_most_mhz")) is None else f"at most {most:,.0f} MHz",
        ],
        "GPU arithmetic": precision,
    }
    texts = {name: ", ".join(filter(None, parts)) for name, parts in parts_of.items()}
    return [(name, text) for name, text in texts.items() if text]


_SWITCHES = {"persistence": "persistence", "ecc": "ECC", "mig": "MIG"}


def _switched(name: str, value: bool | None) -> str | None:
    return None if value is None else f"{name} {'on' if value else 'off'}"


def _power_limit_text(now_w: float | None, default_w: float | None) -> str | None:
    if now_w is None:
        return None
    return f"limit {now_w:.0f} W" + ("" if default_w is None else f" of {default_w:.0f} W by default")


def _temperature_text(state: Mapping[str, float | None]) -> str:
    celsius = state.get("temperature_c")
    return "" if celsius is None else f" at {celsius:.0f} °C"


@contextmanager
def gpu_watched(board: Board | None) -> Iterator[None]:
    """Let ``environment.taken`` also count what others take on a board, as far as NVML reports it."""
    if isinstance(board, NvmlBoard):
        TAKERS.update(throttled_s=board.throttled_s, shared_s=board.shared_s)
    try:
        yield
    finally:
        for name in ("throttled_s", "shared_s"):
            TAKERS.pop(name, None)
