#!/usr/bin/env bash
# The table "Every fusion" of docs/results.md: six data sets, every fusion, three seeds, MiniLM.
#
#   pipelines/every-fusion.sh DATA WORK      DATA holds conll2003, atis, sst2, mrpc, trec6, stsb; WORK takes the stores
#
# Tags are read off words. Sentences are read off rows of mean, which cost next to nothing; extra-layers looks at all
# tokens of a sentence, so it gets rows of tokens and pools behind. Two to three hours on one thread, depth-lstm most
# of them. Run again, it does only what is missing.
set -euo pipefail
data=$1 work=$2
light=(last linear concat attention attention:scale=yes element-wise mlp-weights)
heavy=(concat-affine dwatt dwatt:scale=yes depth-lstm)

# fit STORE LABEL EPOCHS RATE RUNS FUSION… [-- OPTION…]
fit() {
    local store=$1 label=$2 epochs=$3 rate=$4 runs=$5 fusions=()
    shift 5
    while (($#)) && [[ $1 != -- ]]; do fusions+=(--fusion "$1") && shift; done
    fusionkit fit "$work/$store" --label "$label" --epochs "$epochs" --lr "$rate" --out "$work/$runs" \
        "${fusions[@]}" "${@:2}" --seeds 3
}

for set in atis sst2 trec6; do
    fusionkit encode "$data/$set" --rows mean --out "$work/$set-mean.store"
done
for set in mrpc stsb; do
    for form in one two; do
        fusionkit encode "$data/$set" --rows mean --pair-as "$form" --out "$work/$set-$form.store"
    done
done
fusionkit encode "$data/atis" --rows words --out "$work/atis.store"
fusionkit encode "$data/conll2003" --out "$work/conll2003.store"

while read -r store label epochs; do
    fit "$store.store" "$label" "$epochs" 2e-3 sentences "${light[@]}"
    fit "$store.store" "$label" "$epochs" 5e-4 sentences "${heavy[@]}"
done <<'STORES'
atis-mean intent 10
trec6-mean label 10
sst2-mean label 5
mrpc-one label 5
mrpc-two label 5
stsb-one score 10
stsb-two score 10
STORES
fit atis.store slots 10 2e-3 words "${light[@]}" -- --head tagger
fit atis.store slots 10 5e-4 words "${heavy[@]}" extra-layers:1 -- --head tagger
fit conll2003.store tags 5 2e-3 words "${light[@]}" -- --head tagger
fit conll2003.store tags 5 5e-4 words "${heavy[@]}" extra-layers:1 -- --head tagger

while read -r set label epochs; do
    fusionkit encode "$data/$set" --rows tokens --out "$work/$set-tokens.store"
    fit "$set-tokens.store" "$label" "$epochs" 5e-4 tokens extra-layers:1 -- --pool mean
done <<'SETS'
atis intent 10
trec6 label 10
sst2 label 5
stsb score 10
mrpc label 5
SETS

for runs in sentences words tokens; do
    echo "== $runs"
    fusionkit results "$work/$runs" --by data --by label --by sides --by fusion
done
