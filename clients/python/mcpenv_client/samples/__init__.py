"""Samples: episodes as the tokens, log-probabilities, masks and rewards that an optimiser needs."""

from .chain import samples_of
from .sample import Gap, LeftOut, Sample, SampledTurn, Span
from .turns import samples_of_recorded, turns_of

__all__ = ["Gap", "LeftOut", "Sample", "Span", "SampledTurn", "samples_of", "samples_of_recorded", "turns_of"]
