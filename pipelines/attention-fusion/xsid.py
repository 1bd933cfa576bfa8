"""Make xSID folders with a train split, which xSID lacks: each fifth validation sentence stays, the others are train.

    python pipelines/attention-fusion/xsid.py DATA NEW

DATA holds ``xsid`` with ``LANGUAGE.valid.conll`` and ``LANGUAGE.test.conll``. NEW becomes a folder of data sets: links
to those of DATA, and a folder ``xsid-LANGUAGE`` with ``train.conll``, ``validation.conll`` and ``test.conll``.
"""

from __future__ import annotations

import sys
from pathlib import Path

FIFTH = 5


def main(data: Path, new: Path) -> None:
    files = sorted((data / "xsid").glob("*.valid.conll"))
    if not files:
        sys.exit(f"{data / 'xsid'} has no file LANGUAGE.valid.conll")
    new.mkdir(parents=True, exist_ok=True)
    for path in sorted(data.resolve().iterdir()):
        if path.is_dir() and not (new / path.name).exists():
            (new / path.name).symlink_to(path)
    for path in files:
        language = path.name.removesuffix(".valid.conll")
        sentences = path.read_text(encoding="utf-8").strip().split("\n\n")
        splits = {
            "train": [each for place, each in enumerate(sentences) if place % FIFTH],
            "validation": sentences[::FIFTH],
            "test": [(path.parent / f"{language}.test.conll").read_text(encoding="utf-8").strip()],
        }
        (new / f"xsid-{language}").mkdir(exist_ok=True)
        for split, texts in splits.items():
            (new / f"xsid-{language}" / f"{split}.conll").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit((__doc__ or "").split("\n\n")[1])
    main(Path(sys.argv[1]), Path(sys.argv[2]))
