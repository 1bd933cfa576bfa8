#!/usr/bin/env bash
# The table of WikiANN under "Transfer" of docs/results.md: heads trained in one language and used in another, three seeds.
#
#   pipelines/attention-fusion/wikiann.sh DATA WORK      DATA holds wikiann-en, -de, -fr; WORK takes the stores and the runs
#
# Run again, it does only what is missing. transfer-minilm.yaml is the rest of that section.
set -euo pipefail
data=$1 work=$2
fusions=(--fusion last --fusion linear --fusion attention)
fit() { fusionkit fit "$@" --seeds 3; }

# Of WikiANN the first 5,000 sentences to train on, 2,000 each to validate and to test.
for language in en de fr; do
    mkdir -p "$work/wikiann-$language"
    for split in train:5000 validation:2000 test:2000; do
        awk -v n="${split#*:}" 'BEGIN { RS = ""; ORS = "\n\n" } NR <= n' "$data/wikiann-$language/${split%:*}.txt" \
            >"$work/wikiann-$language/${split%:*}.txt"
    done
    fusionkit encode "$work/wikiann-$language" --rows words --out "$work/wikiann-$language.store"
done

fit "$work/wikiann-en.store" "${fusions[@]}" --epochs 5 --out "$work/wikiann" \
    --evaluate-on "$work/wikiann-en.store" --evaluate-on "$work/wikiann-de.store" --evaluate-on "$work/wikiann-fr.store"
for language in de fr; do
    fit "$work/wikiann-en.store" "$work/wikiann-$language.store:5%" "${fusions[@]}" --epochs 5 --out "$work/wikiann"
    fit "$work/wikiann-$language.store:5%" "${fusions[@]}" --epochs 25 --out "$work/wikiann"
done

fusionkit results "$work/wikiann" --by label --by evaluated --by data --by fusion
