"""Joint intent and slots: a label an example and a tag a word, learned by one run."""

from fusionkit.metrics import joint_scores
from fusionkit.tasks.classification import CLASSIFICATION
from fusionkit.tasks.tagging import TAGGING
from fusionkit.tasks.task import Task

# A head of each, the intents' first; the tasks' own defaults make the first pair. One that takes a sentence's rows
# unpooled (`bcn`) is no half of a pair.
HEADS = tuple(f"{intent}+{slots}" for intent in CLASSIFICATION.heads[:1] for slots in TAGGING.heads)
JOINT = Task("joint", "example", HEADS, needs_pair=False, scores=joint_scores)
