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

    def logs_at(self, sample: Sample, at: int) -> dict[int, float]:
        """Return the log-probabilities that the model has now, at a token that a model wrote in a sample."""
        begins = not (sample.mask[at - 1] and sample.tokens[at - 1] in self.values)
        return self.logs(sample.tokens[:at], [*self.values] if begins else self.values[sample.tokens[at - 1]])

    def learn(self, samples: Sequence[Sample], rate: float = 1.0, clip: float | None = 0.2, epochs: int = 4) -> None:
        """Improve by samples with advantages: GRPO with importance weights by the stored log-probabilities.

        Only the model's tokens are learned from (``mask``), and of these only the ones whose turns made a step.

        Args:
            samples: the samples, each with an advantage.
            rate, epochs: the size and the number of steps.
            clip: of the importance weights; None: no weights, so that the samples become likelier without bound.
        """
        for _ in range(epochs):
            slopes = defaultdict[tuple[int, int], float](float)
            for sample in samples:
                assert sample.logprobs is not None and sample.advantage is not None
                for at in [at for span in sample.spans if span.steps for at in range(span.start, span.end)]:
                    logs, written = self.logs_at(sample, at), sample.tokens[at]
                    ratio = 1.0 if clip is None else math.exp(logs[written] - sample.logprobs[at])
                    if clip is not None and sample.advantage * (ratio - 1) > abs(sample.advantage) * clip:
                        continue
                    for token, log in logs.items():
                        slope = ratio * sample.advantage * ((token == written) - math.exp(log))
                        for seen in sample.tokens[:at][-SEEN:]:
                            slopes[seen, token] += slope / len(samples)
            for pair, slope in slopes.items():
                self.weights[pair] += rate * slope
        self.version += 1
