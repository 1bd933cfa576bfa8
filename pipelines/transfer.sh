#!/usr/bin/env bash
# The tables under "Transfer" of docs/results.md: heads trained in one language and used in another, three seeds.
#
#   pipelines/transfer.sh DATA WORK      DATA holds wikiann-en, -de, -fr; WORK takes the stores and the runs
#
# Run again, it does only what is missing. About half an hour on one core.
set -euo pipefail
data=$1 work=$2
desk=$(dirname "$0")/../data/travel-desk
fusions=(--fusion last --fusion linear --fusion attention)
fit() { fusionkit fit "$@" --seeds 3; }
intent() { fit "$@" --label intent --pool mean --epochs "${epochs:-20}"; }
slots() { fit "$@" --label slots --head crf --epochs "${epochs:-30}"; }

for language in en de fr es; do
    fusionkit encode "$desk/$language" --rows tokens --out "$work/travel-$language.store"
done
# Of WikiANN the first 5,000 sentences to train on, 2,000 each to validate and to test.
for language in en de fr; do
    mkdir -p "$work/wikiann-$language"
    for split in train:5000 validation:2000 test:2000; do
        awk -v n="${split#*:}" 'BEGIN { RS = ""; ORS = "\n\n" } NR <= n' "$data/wikiann-$language/${split%:*}.txt" \
            >"$work/wikiann-$language/${split%:*}.txt"
    done
    fusionkit encode "$work/wikiann-$language" --rows words --out "$work/wikiann-$language.store"
done

# English alone, scored on every language; English chooses the epoch.
all=()
for language in en de fr es; do all+=(--evaluate-on "$work/travel-$language.store"); done
for task in intent slots; do
    "$task" "$work/travel-en.store" "${all[@]}" "${fusions[@]}" --fusion concat --out "$work/english"
done
for language in de fr es; do
    for task in intent slots; do
        # English and 5 % of another language (Cao et al. 2022, table 3).
        "$task" "$work/travel-en.store" "$work/travel-$language.store:5%" "${fusions[@]}" --out "$work/shared"
        # All of that language, with a fusion of its own and with the English one, frozen (table 4).
        own=(--fusion linear --fusion attention --out "$work/own")
        "$task" "$work/travel-$language.store" "${own[@]}"
        "$task" "$work/travel-$language.store" "${own[@]}" --init-from "$work/english" --init-part fusion --freeze fusion
    done
    # Those 5 % alone are four examples: a step an epoch, and too few for slots.
    epochs=50 intent "$work/travel-$language.store:5%" "${fusions[@]}" --out "$work/shared"
done

fit "$work/wikiann-en.store" "${fusions[@]}" --epochs 5 --out "$work/wikiann" \
    --evaluate-on "$work/wikiann-en.store" --evaluate-on "$work/wikiann-de.store" --evaluate-on "$work/wikiann-fr.store"
for language in de fr; do
    fit "$work/wikiann-en.store" "$work/wikiann-$language.store:5%" "${fusions[@]}" --epochs 5 --out "$work/wikiann"
    fit "$work/wikiann-$language.store:5%" "${fusions[@]}" --epochs 25 --out "$work/wikiann"
done

for runs in english shared own wikiann; do
    echo "== $runs"
    fusionkit results "$work/$runs" --by label --by evaluated --by data --by init_data --by fusion
done
