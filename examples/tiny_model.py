"""A language model small enough for pure Python, for the examples that train one on the tokens of episodes.

A token is a word. The next token depends on the last few: their weights for it are added up. The model writes calls
only, by a grammar, as servers do with structured output: the name of a tool, and then a value of its argument.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from mcpenv_client.samples import Sample

SEEN = 6
"""The number of last tokens that the next one depends on."""


class TinyModel:
    """The model, with a vocabulary that grows with what it reads.

    Args:
        grammar: the values of the argument of each tool; none for a tool without one.
        seed: of the samples.
    """

    def __init__(self, grammar: Mapping[str, Sequence[str]], seed: int) -> None:
        self.ids: dict[str, int] = {}
        self.values = {self.read(name)[0]: [self.read(value)[0] for value in grammar[name]] for name in grammar}
        self.weights, self.dice, self.version = defaultdict[tuple[int, int], float](float), random.Random(seed), 0

    def read(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self.ids.setdefault(word, len(self.ids)) for word in text.split()]

    def text(self, ids: Iterable[int]) -> list[str]:
        """Return the words of some tokens."""
        words = list(self.ids)
        return [words[each] for each in ids]

    def logs(self, before: Sequence[int], allowed: Sequence[int]) -> dict[int, float]:
        """Return the log-probabilities of the tokens that may follow."""
        scores = {each: sum(self.weights[seen, each] for seen in before[-SEEN:]) for each in allowed}
        whole = math.log(sum(map(math.exp, scores.values())))
        return {each: score - whole for each, score in scores.items()}

    def write(self, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        """Sample a call: return its tokens and their log-probabilities."""
        ids, logprobs, allowed = list[int](), list[float](), [*self.values]
        while allowed:
            logs = self.logs([*prompt, *ids], allowed)
            ids += self.dice.choices([*logs], [math.exp(log) for log in logs.values()])
            logprobs.append(logs[ids[-1]])
            allowed = self.values.get(ids[-1], [])
        return ids, logprobs

    def learn(self, samples: Sequence[Sample], rate: float = 1.0, clip: float = 0.2, epochs: int = 4) -> None:
        """Improve by samples with advantages and log-probabilities: GRPO with importance weights, clipped.

        Only tokens of the model are learned from (``mask``), and of these only the ones whose turns made a step.
        """
        for _ in range(epochs):
            slopes = defaultdict[tuple[int, int], float](float)
            for sample in samples:
                assert sample.logprobs is not None and sample.advantage is not None
                for at in [at for span in sample.spans if span.steps for at in range(span.start, span.end)]:
                    first = not (sample.mask[at - 1] and sample.tokens[at - 1] in self.values)
                    allowed = [*self.values] if first else self.values[sample.tokens[at - 1]]
                    logs = self.logs(sample.tokens[:at], allowed)
                    ratio = math.exp(logs[sample.tokens[at]] - sample.logprobs[at])
                    if sample.advantage * (ratio - 1) > abs(sample.advantage) * clip:
                        continue
                    for token, log in logs.items():
                        slope = ratio * sample.advantage * ((token == sample.tokens[at]) - math.exp(log))
                        for seen in sample.tokens[:at][-SEEN:]:
                            slopes[seen, token] += slope / len(samples)
            for pair, slope in slopes.items():
                self.weights[pair] += rate * slope
        self.version += 1
