"""Methods and fusions whose width is left out, and the largest width that a budget of weights allows. Loads torch only
for methods.

    pals, low-rank:layers=-3:, projected-attention:depth=3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.fusions.table import REGISTRY as FUSIONS
from fusionkit.fusions.table import fusion_signature
from fusionkit.methods.table import REGISTRY as METHODS
from fusionkit.methods.table import method_class
from fusionkit.options.spelling import omitted, parse
from fusionkit.plural import counted

MOST = 1 << 20  # widths up to (2 · MOST − 1) · step are tried
Count = Callable[[str], int]  # a method or a fusion → the number of its weights that a task has for itself


class NothingFitsError(UsageError):
    """The budget is too small for any width."""


@dataclass(frozen=True)
class OpenWidth:
    """A method or a fusion whose width is left out, like ``pals:share=no``.

    Attributes:
        noun: ``method`` or ``fusion``. text: as the user wrote it. kind, options: its name, and the text after the
            colon. argument: the name of its width. step: the number of its heads, or 1; the width is a multiple of it.
    """

    noun: str
    text: str
    kind: str
    options: str | None
    argument: str
    step: int

    @classmethod
    def of(cls, noun: str, text: str) -> OpenWidth | None:
        """The open width of a text, None if its width is given; UsageError for an unknown name or option, or an
        argument that is no whole number.
        """
        registry, class_of = (METHODS, method_class) if noun == "method" else (FUSIONS, fusion_signature)
        kind, options = registry.split(text)
        made = class_of(kind)
        argument = omitted(made, options)
        if argument is None:
            return None
        found = cls(noun, text, kind, options, argument.name, 1)
        if argument.type is not int:
            raise found._refused("its argument is no whole number")
        values = parse(noun, kind, made, found.at(1).partition(f"{kind}:")[2])
        return cls(noun, text, kind, options, argument.name, max(int(values.get("heads", 1)), 1))

    def at(self, width: int) -> str:
        """The text with a width filled in."""
        return ",".join(filter(None, [f"{self.kind}:{width}", self.options]))

    def widest(self, count: Count, budget: int) -> str:
        """The text with the width whose number of weights is nearest to a budget without exceeding it.

        Raises:
            UsageError: the number of weights does not depend on the width, the encoder cannot take the method, or the
            width with the most weights still has fewer than the budget.
            NothingFitsError: no width stays within the budget.
        """

        def weights(times: int) -> int:
            return count(self.at(self.step * times))

        one, two = weights(1), weights(2)
        if one == two:
            raise self._refused(f"the weights that a task has for itself do not depend on its {self.argument}")
        rises = two > one  # the weights of ladder:r fall with its width

        def fits(times: int) -> bool | None:
            """Whether a width is within the budget; None if it is wider, or narrower, than the encoder takes."""
            with suppress(UsageError):
                return weights(times) <= budget
            return None

        # Bisection. Rising weights fit at `low` and do not fit at `high`; falling ones the other way round.
        low, high = 0, 1
        while high <= MOST and bool(fits(high)) == rises:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if bool(fits(middle)) == rises else (low, middle)
        best = low if rises else high
        if not best or not fits(best):
            first = f"{self.at(self.step)} has {one:,}"
            raise self._refused(f"nothing of it stays within {counted(budget, 'weight')}, {first}", NothingFitsError)
        text, found, wider = self.at(self.step * best), weights(best), best + 1 if rises else best - 1
        if found < budget and (best >= MOST or not wider or fits(wider) is None):
            raise self._refused(
                f"the widest that is tried, {text}, has {found:,} weights, fewer than {budget:,}",
                expected=f"a budget of at most {found:,}",
            )
        return text

    def _refused(self, why: str, kind: type[UsageError] = UsageError, expected: str | None = None) -> UsageError:
        return kind(
            f"--budget-per-task cannot set the {self.argument} of {self.noun} {self.text!r}: {why}",
            expected=expected or f"{self.kind}:{self.argument} with a number, or a larger budget",
            received=self.text,
            remedy="write the number after the name",
        )


def fill_width(method: str, fusion: str, budget: int, of_method: Count, of_fusion: Count) -> tuple[str, str]:
    """A method and a fusion with the missing width of one filled in: the largest that the budget of both allows.

    Raises:
        UsageError: both leave it out, or nothing stays within the budget.
    """
    open_method, open_fusion = OpenWidth.of("method", method), OpenWidth.of("fusion", fusion)
    if open_method and open_fusion:
        raise UsageError(
            f"--budget-per-task sets one width, and method {method!r} and fusion {fusion!r} both leave theirs out",
            expected="a number after one of the two",
            received=f"--method {method} --fusion {fusion}",
            remedy=f"choose one, like --fusion {open_fusion.at(12)}",
        )
    if open_method:
        return open_method.widest(of_method, _left(budget, "fusion", fusion, of_fusion)), fusion
    if open_fusion:
        return method, open_fusion.widest(of_fusion, _left(budget, "method", method, of_method))
    return method, fusion


def _left(budget: int, noun: str, text: str, count: Count) -> int:
    if (taken := count(text)) >= budget:
        raise NothingFitsError(
            f"--budget-per-task {budget:,} leaves no weight beside {noun} {text!r}",
            expected=f"more than {taken:,}, which a task has for itself of it",
            received=str(budget),
            remedy="choose a larger budget, or another " + noun,
        )
    return budget - taken


def leaves_out(block: Mapping[str, Any]) -> bool:
    """Whether a method or a fusion of a block leaves its width out.

    Raises:
        UsageError: one does, and there is no budget to set it by.
    """
    texts = {"method": block.get("methods") or (), "fusion": block.get("fusions") or ()}
    found = [each for noun, named in texts.items() for text in named if (each := OpenWidth.of(noun, text))]
    if found and block.get("budget_per_task") is None:
        first = found[0]
        raise UsageError(
            f"{first.noun} {first.text!r} is not complete",
            expected=f"{first.kind}:{first.argument} with a number",
            received=first.text,
            remedy="write the number after the name, or let --budget-per-task N set it",
        )
    return bool(found)


def refuse_idle(blocks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a budget where no run leaves a width out (UsageError)."""
    asked = [block["budget_per_task"] for block in blocks if block.get("budget_per_task") is not None]
    if asked and not any(map(leaves_out, blocks)):
        raise UsageError(
            "--budget-per-task sets the width of methods and fusions that leave it out, and none does",
            expected="one like --method pals, --method low-rank, --method houlsby or --fusion projected-attention",
            received=f"--budget-per-task {asked[0]}",
            remedy="leave out the number after the name, or the budget",
        )
