"""Token tagging: one tag a word (entities, slots, parts of speech), read off the word's row."""

from fusionkit.heads.table import heads_of
from fusionkit.metrics import tag_scores
from fusionkit.tasks.task import Task

TAGGING = Task("tagging", "word", heads_of("tagging"), needs_pair=False, scores=tag_scores)
