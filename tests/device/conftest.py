"""Tests that need a GPU; without one, or a build for it, they are skipped."""

import pytest

from pylucebox._backends import system_info


@pytest.fixture(scope="session")
def gpu() -> str:
    """Name of the first GPU."""
    devices = system_info().devices
    names = [device.name for device in devices if device.kind in ("gpu", "igpu")]
    if not names:
        pytest.skip(f"this build runs on {', '.join(device.name for device in devices)} here, which is no GPU")
    return names[0]
