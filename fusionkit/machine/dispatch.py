"""A context that sees each operation of torch below autograd and autocast."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base of the modes: ``__torch_dispatch__`` gets each operation with its arguments and returns its result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps the next function for ``torch.compile``, whose import takes two seconds."""
        return False
