"""Types of the generated extension. cffi objects are dynamic; `_ffi` is the only module that imports this one."""

from typing import Any

ffi: Any
lib: Any
