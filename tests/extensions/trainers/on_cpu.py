"""Short runs of TRL on a processor."""

from __future__ import annotations

import tempfile
from typing import Any

from trl import GRPOConfig


def arguments_of(**options: Any) -> Any:
    """Return arguments of ``GRPOTrainer`` for a few steps that leave nothing behind, with further options."""
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        **options,
    )
