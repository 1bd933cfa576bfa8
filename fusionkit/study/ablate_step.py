"""The step that scores the runs of a sweep without the parts that their method added to each span of layers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fusionkit.errors import NothingFinishedError, UsageError
from fusionkit.runs.ablations import ABLATION, read_ablation
from fusionkit.runs.folder import RECORD
from fusionkit.runs.record import digest_of_record, is_floor
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Commands, Made, Step


def ablate_step(name: str, work: StudyFolder, commands: Commands, fitting: SweepFit) -> Step:
    """Ablate each finished run of a sweep, on validation; what was ablated before a kill is kept."""
    runs = work.runs(name)

    def finished() -> list[Path]:
        records = [each for each in fitting.records() if each["status"] == "finished" and not is_floor(each)]
        return [runs / digest_of_record(each) for each in records]

    def made_from() -> dict[str, Any]:
        return {"runs": {folder.name: content_of(folder / RECORD) for folder in finished()}}

    def there() -> Made:
        return work.contents(work.name(folder / ABLATION) for folder in finished())

    def make() -> Made:
        from fusionkit.tuning.ablation import ablate  # loads transformers

        stores = {store.digest: store for store in fitting.stores.values()}
        for folder in finished():
            found = read_ablation(folder)
            if found is None or found.split != "validation" or found.limit is not None:  # of another command
                commands.say(f"scoring {folder} without the parts of every span of layers")
                try:
                    ablate(
                        folder,
                        stores,
                        tell=commands.say,
                        trust_remote_code=commands.trust_remote_code,
                        device=commands.device,
                    )
                except UsageError as error:  # a method without parts beside others in the sweep
                    commands.say(f"{folder} is left out: {error.what}")
        if not (made := there()):
            raise NothingFinishedError(f"no run of sweep {name} has finished and could be ablated")
        return made

    command = shlex.join(["fusionkit", "ablate", str(runs / "RUN"), "--store", str(work.path / "stores")])
    return Step(f"ablate {name}", command, made_from, lambda _: there(), make)
