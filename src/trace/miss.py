"""What a prologue returns in place of inputs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Miss:
    """A failed assumption."""

    reason: str
