#!/usr/bin/env bash
# The tables of docs/results.md: every data set encoded once with MiniLM, then fitted with four fusions, three seeds.
#
#   pipelines/minilm-results.sh DATA WORK      DATA holds conll2003, sst2, atis, mrpc, stsb, trec6; WORK takes the stores
#
# Run again, it does only what is missing. About an hour on two cores.
set -euo pipefail
data=$1 work=$2
fit() { fusionkit fit "$@" --fusion last --fusion linear --fusion concat --fusion attention --seeds 3; }

fusionkit encode "$data/conll2003" --out "$work/conll2003.store" # rows of words: there are tags
fusionkit encode "$data/atis" --out "$work/atis.store"           # rows of tokens: there are tags and labels
fusionkit encode "$data/sst2" --rows tokens --out "$work/sst2.store"
fusionkit encode "$data/mrpc" --rows tokens --pair-as one --out "$work/mrpc.store"
fusionkit encode "$data/trec6" --rows tokens --out "$work/trec6.store"

fit "$work/conll2003.store" --label tags --head tagger --epochs 5 --out "$work/runs"
fit "$work/conll2003.store" --label tags --head crf --epochs 5 --out "$work/runs"
fit "$work/atis.store" --label slots --head tagger --out "$work/runs"
fit "$work/atis.store" --label slots --head crf --out "$work/runs"
for pool in cls mean max; do
    fit "$work/atis.store" --label intent --pool "$pool" --out "$work/runs"
    fit "$work/trec6.store" --label label --pool "$pool" --out "$work/runs"
    fit "$work/mrpc.store" --label label --pool "$pool" --epochs 5 --out "$work/runs"
    fit "$work/sst2.store" --label label --pool "$pool" --epochs 5 --out "$work/runs"
done
# The same from rows that are pooled before they are stored: a folder of its own, the source's name is the same.
fusionkit encode "$data/sst2" --rows mean --out "$work/sst2-mean.store"
fit "$work/sst2-mean.store" --label label --epochs 5 --out "$work/runs-mean"
# Pairs as one sequence and as two; the column sides tells which.
for form in one two; do
    for set in mrpc stsb; do
        fusionkit encode "$data/$set" --rows mean --pair-as "$form" --out "$work/$set-$form.store"
    done
    fit "$work/mrpc-$form.store" --epochs 5 --out "$work/runs-pairs"
    fit "$work/stsb-$form.store" --out "$work/runs-pairs"
done
for set in conll2003 atis sst2 mrpc trec6; do
    echo "== $set"
    fusionkit results "$work/runs" --by data --by label --by head --by pool --by fusion | grep -E "^data|$set"
done
echo "== sst2, rows of mean"
fusionkit results "$work/runs-mean"
echo "== pairs"
fusionkit results "$work/runs-pairs" --by data --by sides --by fusion
