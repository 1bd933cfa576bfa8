"""Token tagging: one tag a word (entities, slots, parts of speech), read off the word's row."""

from fusionkit.metrics import tag_scores
from fusionkit.tasks.task import Task

TAGGING = Task("tagging", "word", ("tagger", "linear-tagger", "crf", "bilstm-crf"), needs_pair=False, scores=tag_scores)
