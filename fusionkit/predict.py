"""Trained heads over new texts: one pass of the encoder feeds any number of finished runs.

The heads were trained over stored states and read live ones here, in the precision of the encoder's forward pass. The
two differ by the rounding of the store's dtype, and so do scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fusionkit.alignment import Rows, lay_rows
from fusionkit.encode.batches import NONE, PartInput, forward
from fusionkit.encode.batching import Batching
from fusionkit.encode.text_pairs import live_groups, live_sequences
from fusionkit.encoder import Encoder
from fusionkit.encoder.refusals import refuse_surrogates
from fusionkit.encoder.truncate import truncated
from fusionkit.errors import UsageError
from fusionkit.exported import open_heads
from fusionkit.exported.head_names import head_names
from fusionkit.exported.one_pass import answering, kind_of, pair_as, refuse_different
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.model.fused import threshold_of
from fusionkit.fit.model.precision import full_float32
from fusionkit.live_rows import Reader, SharedRows, in_order, readers_of, shared_rows
from fusionkit.plural import counted
from fusionkit.ragged import IntArray
from fusionkit.tags import are_span_tags, spans_of
from fusionkit.tasks import ALONE
from fusionkit.tuning.trained import encoder_of_run, own_encoders

BLOCK = 1000  # examples tokenised together: each batch's rows are looked up among all of them
LARGEST_BATCH = 8192  # sub-tokens; all layers of a batch are held in float32 at once
Passed = tuple[Path, str]  # a run's folder, and the task that an encoder has weights for; "" for all tasks
EXAMPLES = {"texts": "texts", "pairs": "two texts an example", "words": "a list of words an example"}


@dataclass(frozen=True)
class Label:
    """The likeliest class of a whole example, and the probability of every class where the head has them."""

    label: str
    probabilities: dict[str, float] | None


@dataclass(frozen=True)
class Number:
    """A regression's answer for a whole example."""

    value: float


@dataclass(frozen=True)
class Span:
    """Neighbouring words that are one thing: words ``start`` to ``stop``, half-open."""

    type: str
    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class Tags:
    """A tag for each word.

    Attributes:
        words: as given. tags: one per word; a word that has no sub-token, or was cut, has the default tag, as in
            training's scores. spans: if the tags are BIO tags, else None.
        probabilities: of each word's tag, None for a word without a sub-token. For a CRF the whole list is None: it
            decides for the best path, not for each word.
    """

    words: list[str]
    tags: list[str]
    spans: list[Span] | None
    probabilities: list[float | None] | None


@dataclass(frozen=True)
class Labels:
    """The classes of a whole example whose probability is above the threshold, and the probability of every class."""

    labels: list[str]
    probabilities: dict[str, float]
    threshold: float


Answer = Label | Labels | Number | Tags


@dataclass(frozen=True)
class Prediction:
    """Each head's answer about one example, by the head's name; ``cut``: the encoder did not get all of the text."""

    heads: dict[str, Answer]
    cut: bool

    def __getitem__(self, name: str) -> Answer:
        return self.heads[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return dataclasses.asdict(self)


def load(
    *runs: str | Path,
    device: str = "auto",
    encoder: str | None = None,
    trust_remote_code: bool = False,
    trust_modules: Sequence[str] = (),
    trust_encoder: bool = False,
    takes: str | None = None,
) -> Predictor:
    """Load finished runs and the encoder they share.

    Args:
        runs: each is a run's folder or the beginning of one (``runs/3f2a``), a folder of runs (all finished runs in
            it), a folder that ``fusionkit export`` wrote, or the hub id of one (``owner/name``).
        encoder: where the encoder is now, if it has moved since the store was encoded.
        trust_modules: modules that exported heads may import for a fusion or head that is not fusionkit's own.
        trust_encoder: load the encoder that an exported head names even if it is a folder of this machine.
        takes: ``texts``, ``pairs`` or ``words``. Where each task of a run has its own store, only the tasks that read
            this kind of input answer; tasks that read texts can also read words. None is what the first task reads.

    Raises:
        UsageError: no such run, or runs that one pass of one encoder cannot serve.
        EncoderError: the encoder cannot be loaded, or is not the one whose states the runs were trained over.
        StoreError: a damaged record or damaged weights.

    Example:
        >>> predictor = load("runs")                    # doctest: +SKIP
        >>> predictor.predict(["a room in Oslo"])[0]["intent"].label  # doctest: +SKIP
        'book_hotel'
    """
    if not runs:
        raise UsageError("no run is given", expected="one finished run or more", remedy="name a run or its folder")
    opened = open_heads(runs, encoder, trust_modules, trust_encoder)
    return predictor_of(opened, device, encoder, trust_remote_code, takes)


def predictor_of(
    opened: Sequence[TrainedRun],
    device: str = "auto",
    encoder: str | None = None,
    trust_remote_code: bool = False,
    takes: str | None = None,
) -> Predictor:
    """A predictor for these runs and the encoder that they share; arguments and errors as in :func:`load`."""
    if takes is not None:
        for run in opened:
            answering(run, takes)  # raises where the run cannot read it
    takes = takes or kind_of(opened[0])
    trained = [answering(run, takes) if run.apart else run for run in opened]
    refuse_different([part for run in trained for part in run.parts.values()], takes)
    own = {
        (run.folder, name): each
        for run in trained
        if run.delta
        for name, each in own_encoders(run, encoder, device, trust_remote_code).items()
    }
    left = [name for one, other in zip(opened, trained, strict=True) for name in one.parts if name not in other.parts]
    if all(run.delta for run in trained):
        return Predictor(trained, next(iter(own.values())), own, takes, left)
    first = next(run for run in trained if run.delta is None)
    loaded = encoder_of_run(first, encoder, device, trust_remote_code)
    highest = max(layer for run in trained if run.delta is None for layer in run.layers)
    return Predictor(trained, truncated(loaded, highest), own, takes, left)


@dataclass(frozen=True)
class EncoderPass:
    """An encoder and the heads that read one pass of it: all heads over the frozen encoder, or heads of one run that
    trained its own.

    Attributes:
        readers: its heads. layers: for each kind of rows the layers that some head reads.
    """

    encoder: Encoder
    readers: list[Reader]
    layers: dict[str, list[int]]

    @classmethod
    def of(cls, encoder: Encoder, runs: Mapping[str, TrainedRun]) -> Self:
        """The pass for runs by head name. Runs over one kind of rows share these rows and all layers read from them."""
        kinds = dict.fromkeys(run.rows for run in runs.values())
        layers = {
            rows: sorted({layer for run in runs.values() if run.rows == rows for layer in run.layers}) for rows in kinds
        }
        return cls(encoder, readers_of(runs.items()), layers)


class Predictor:
    """Heads over one shared encoder, and heads of runs that trained an encoder of their own, each over its own.

    Attributes:
        runs: by head name: the column that the head learned, followed, where several learned it, by how they differ
            (:func:`fusionkit.exported.head_names.head_names`); a run of several tasks has an entry for each column.
        trained: the runs as they were given. encoder: without the layers above the highest one that is read, where
            they can be removed. takes: ``texts``, ``pairs`` or ``words``, as in training. passes: the encoder passes
            over each text. left_out: names of tasks that read other input.
    """

    def __init__(
        self,
        runs: Sequence[TrainedRun],
        encoder: Encoder,
        own: Mapping[Passed, Encoder] | None = None,
        takes: str | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        self.trained = list(runs)
        runs = [part for run in runs for part in run.parts.values()]
        self.runs = dict(zip(head_names(runs), runs, strict=True))
        self.encoder, self.takes, self._two = encoder, takes or kind_of(runs[0]), pair_as(runs[0]) == "two"
        self.left_out = list(left_out)
        # Without a head over words the tokenizer was loaded for texts: some then take words apart in another way.
        self._joins = self.takes == "words" and all(kind_of(run) != "words" for run in runs)
        own = own or {}
        # A method may add positions in front of a text: all heads of a pass then read the shorter text.
        longest = min(each.max_length for each in (encoder, *own.values()))
        self.max_length = min(int(runs[0].encoding["max_length"]), longest)
        for run in runs:
            run.model.to(encoder.device)
        folders = {folder for folder, _ in own}
        frozen = {name: run for name, run in self.runs.items() if run.folder not in folders}
        self.passes = [EncoderPass.of(encoder, frozen)] if frozen else []
        for (folder, task), trained in own.items():
            mine = {name: run for name, run in self.runs.items() if run.folder == folder}
            heads = {name: run for name, run in mine.items() if task in (ALONE, run.name)}
            self.passes.append(EncoderPass.of(trained, heads))

    def predict(
        self, texts: Iterable[str] | Iterable[Sequence[str]], pairs: Iterable[str] | None = None, *, start: int = 0
    ) -> list[Prediction]:
        """The answers of every head, one prediction per example, in order.

        Args:
            texts: texts, or lists of words, as in training: a list, an array or a column of pandas. pairs: the second
                texts of pairs. start: the number of the first example, for errors.

        Raises:
            UsageError: input of another kind than in training, a text without any sub-token, or one that holds half of
                a surrogate pair.
        """
        # Neither an array nor a column of pandas has a truth value.
        given: str | list[Any] = texts if isinstance(texts, str) else list(texts)
        seconds: str | list[str] | None = pairs if pairs is None or isinstance(pairs, str) else list(pairs)
        self._refuse(given, seconds, start)
        if self._joins:
            given = [" ".join(words) for words in given]
        found: list[Prediction] = []
        for at in range(0, len(given), BLOCK):
            block = slice(at, at + BLOCK)
            found += self._predict(given[block], None if seconds is None else seconds[block], start + at)
        return found

    def _predict(
        self, texts: Sequence[str] | Sequence[Sequence[str]], pairs: Sequence[str] | None, start: int
    ) -> list[Prediction]:
        """The answers about one block; ``start`` is the number of its first example."""
        refuse_surrogates(texts, start)
        refuse_surrogates(pairs or (), start)
        words_given = self.takes == "words" and not self._joins
        first, second, sequences = live_sequences(texts, pairs, self._two)
        tokenized = self.encoder.tokenize(first, second, self.max_length)
        counts = np.array([len(text) for text in texts], dtype=np.int64) if words_given else None
        offsets = tokenized.token_offsets
        if (empty := np.flatnonzero((np.diff(offsets) == 0)[sequences].any(axis=1))).size:
            raise UsageError(
                f"example {start + empty[0]} has no sub-token",
                expected="a sub-token in every text",
                received="an empty text, to which this encoder's tokenizer adds nothing",
                remedy="remove such examples",
            )
        rows = {
            kind: lay_rows(kind, offsets, tokenized.word_index, counts)
            for kind in dict.fromkeys(run.rows for run in self.runs.values())
        }
        words = None if counts is None else lay_rows("words", offsets, tokenized.word_index, counts)
        part = PartInput(
            token_ids=tokenized.token_ids.astype(np.int64),
            segments=tokenized.segments.astype(np.int64),
            offsets=offsets,
            rows=next(iter(rows.values())),
            first_row=0,
            first_number=0,
            first_alike=np.full(len(tokenized.cut), NONE, dtype=np.int64),
        )
        answers: list[dict[str, Any]] = [dict.fromkeys(self.runs) for _ in texts]
        batching = Batching.on("cuda" if self.encoder.device.type == "cuda" else "cpu", self.encoder.hidden)
        batching = dataclasses.replace(batching, tokens=min(batching.tokens, LARGEST_BATCH))
        with torch.inference_mode(), full_float32(self.encoder.device):
            for examples, batches, order in live_groups(part, sequences, batching, self.encoder.pad_id):
                for each in self.passes:
                    states = [forward(each.encoder, batch) for batch in batches]
                    shared = {}
                    for kind, layers in each.layers.items():
                        found = [
                            shared_rows(state, layers, part, batch, rows[kind], words)
                            for state, batch in zip(states, batches, strict=True)
                        ]
                        shared[kind] = in_order(found, order)
                    for reader in each.readers:
                        of_head = _answers(reader, shared[reader.run.rows], examples, texts, words)
                        for example, answer in zip(examples.tolist(), of_head, strict=True):
                            answers[example][reader.name] = answer
        cut: NDArray[np.bool_] = np.logical_or.reduce(tokenized.cut[sequences], axis=1)
        return [Prediction(heads, bool(one)) for heads, one in zip(answers, cut, strict=True)]

    def _refuse(self, texts: Sequence[Any], pairs: Sequence[str] | None, start: int) -> None:
        for number, text in enumerate(texts, start):
            if not (isinstance(text, str) or (np.iterable(text) and all(isinstance(word, str) for word in text))):
                raise UsageError(
                    f"example {number} is neither a text nor a list of words",
                    expected=EXAMPLES[self.takes],
                    received=repr(text)[:60],
                    remedy="give each example as a string, or as a list of strings",
                )
        words = [not isinstance(text, str) for text in texts]
        given = "pairs" if pairs is not None else "words" if any(words) else "texts"
        single = isinstance(pairs, str)
        if single or any(not isinstance(second, str) for second in pairs or ()) or (pairs is not None and any(words)):
            raise UsageError(
                "each side of a pair is a text",
                expected=EXAMPLES["pairs"],
                received="one text for all pairs" if single else "something else on one side",
                remedy="give a list of texts" if single else "join lists of words to texts",
            )
        if isinstance(texts, str) or (texts and given != self.takes) or (any(words) and not all(words)):
            raise UsageError(
                "the runs were trained over other input",
                expected=EXAMPLES[self.takes],
                received="one text"
                if isinstance(texts, str)
                else EXAMPLES[given]
                if len(set(words)) < 2
                else "texts and lists of words",
                remedy="split texts into words as training's were" if self.takes == "words" else "give that",
            )
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(
                "the numbers of texts and of second texts differ",
                expected=counted(len(texts), "second text"),
                received=str(len(pairs)),
                remedy="give one second text for each text",
            )


def _answers(
    reader: Reader, shared: SharedRows, examples: IntArray, texts: Sequence[Any], words: Rows | None
) -> Iterator[Answer]:
    """One head's answers for a batch, one per example."""
    run = reader.run
    scores, read_offsets = shared.scores(reader)
    classes = run.model.head.decode(scores, torch.from_numpy(read_offsets).to(scores.device)).cpu().numpy()
    of_head = getattr(run.model.head, "probabilities", None)
    likely = None if of_head is None else of_head(scores).cpu().numpy()  # [n, classes]
    threshold = threshold_of(run.model)
    if run.spec.task == "regression":
        yield from (Number(float(value)) for value in classes)
    elif threshold is not None:
        for each in classes:
            every = dict(zip(run.labels, map(float, each), strict=True))
            yield Labels([name for name, chance in every.items() if chance > threshold], every, threshold)
    elif not run.of_words:
        for at, best in enumerate(classes):
            chances = None if likely is None else dict(zip(run.labels, map(float, likely[at]), strict=True))
            yield Label(run.labels[best], chances)
    else:
        assert words is not None
        for at, example in enumerate(examples):
            has_row = words.mask[words.row_offsets[example] : words.row_offsets[example + 1]]
            these = slice(read_offsets[at], read_offsets[at + 1])
            yield _tagged(run, list(texts[example]), has_row, classes[these], None if likely is None else likely[these])


def _tagged(
    run: TrainedRun, words: list[str], has_row: NDArray[np.bool_], classes: IntArray, likely: NDArray[np.float32] | None
) -> Tags:
    tags: list[str] = [run.default] * len(words)
    chances: list[float | None] = [None] * len(words)
    for k, word in enumerate(np.flatnonzero(has_row)):
        tags[word] = run.labels[classes[k]]
        if likely is not None:
            chances[word] = float(likely[k, classes[k]])
    spans = None
    if are_span_tags(run.labels):
        spans = [Span(kind, start, stop, " ".join(words[start:stop])) for kind, start, stop in spans_of(tags)]
    return Tags(words, tags, spans, None if likely is None else chances)
