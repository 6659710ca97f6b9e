"""Everything that the package offers. `pylucebox.__getattr__` loads it at the first use of any of it."""

from pylucebox._backends import Backend, Device, SystemInfo, system_info
from pylucebox._build import BuildInfo
from pylucebox._chat import ChatStep
from pylucebox._dispatch import BackEnd, Dispatch, Kernels, Promise
from pylucebox._engine import Engine
from pylucebox._errors import (
    BackendError,
    BackendUnavailableError,
    BuildError,
    BuildMismatchError,
    CancelledError,
    ClosedError,
    ContextFullError,
    DecodeError,
    InvalidArgumentError,
    LibraryNotFoundError,
    LoadError,
    LuceboxError,
    ModelFormatError,
    ModelNotFoundError,
    OutOfMemoryError,
    RollbackError,
    SamplingError,
    SequenceStateError,
    SidecarMismatchError,
    SidecarNotFoundError,
    SpecUnavailableError,
    WriteError,
)
from pylucebox._model import ModelInfo
from pylucebox._result import ChatCompletion, Completion, CycleInfo, Step, TokenLogprob, token_digest
from pylucebox._sampling import SamplingParams
from pylucebox._session_options import SessionInfo
from pylucebox._sidecar import Candidate, SidecarVerdict, find_sidecar
from pylucebox._spec import SpecReason, SpecState
from pylucebox._stats import RequestStats, SpecStats
from pylucebox._version import __version__
from pylucebox.ab.errors import ArmError, ComparisonError, EnvironmentMismatchError, SessionFileError
from pylucebox.serve.errors import ListenError
from pylucebox.sim.errors import TraceFormatError
from pylucebox.width import (
    AdaptiveWidth,
    CycleContext,
    CycleObservation,
    CyclePlan,
    DraftPolicy,
    FixedWidth,
    WidthCosts,
    WidthPolicy,
    WidthTelemetry,
)

__all__ = [
    "AdaptiveWidth",
    "ArmError",
    "BackEnd",
    "Backend",
    "BackendError",
    "BackendUnavailableError",
    "BuildError",
    "BuildInfo",
    "BuildMismatchError",
    "CancelledError",
    "Candidate",
    "ChatCompletion",
    "ChatStep",
    "ClosedError",
    "ComparisonError",
    "Completion",
    "ContextFullError",
    "CycleContext",
    "CycleInfo",
    "CycleObservation",
    "CyclePlan",
    "DecodeError",
    "Device",
    "Dispatch",
    "DraftPolicy",
    "Engine",
    "EnvironmentMismatchError",
    "FixedWidth",
    "InvalidArgumentError",
    "Kernels",
    "LibraryNotFoundError",
    "ListenError",
    "LoadError",
    "LuceboxError",
    "ModelFormatError",
    "ModelInfo",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "Promise",
    "RequestStats",
    "RollbackError",
    "SamplingError",
    "SamplingParams",
    "SequenceStateError",
    "SessionFileError",
    "SessionInfo",
    "SidecarMismatchError",
    "SidecarNotFoundError",
    "SidecarVerdict",
    "SpecReason",
    "SpecState",
    "SpecStats",
    "SpecUnavailableError",
    "Step",
    "SystemInfo",
    "TokenLogprob",
    "TraceFormatError",
    "WidthCosts",
    "WidthPolicy",
    "WidthTelemetry",
    "WriteError",
    "__version__",
    "find_sidecar",
    "system_info",
    "token_digest",
]

# Tracebacks, reprs and documentation show where a name is imported from, not where it is written.
for _name in __all__:
    if hasattr(globals()[_name], "__module__"):
        globals()[_name].__module__ = "pylucebox"
del _name
