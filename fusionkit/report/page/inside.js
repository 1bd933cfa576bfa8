"use strict";
// A look inside: a run, its sentences, and of one of them every token's layer weights.

const LIST_STEP = 60;

function unpack(text) {
  if (!text) return null;
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
  return bytes;
}

function isWrong(look, source, k) {
  const [gold, said] = [source.gold[k], look.predicted[k]];
  return Array.isArray(gold) ? gold.some((tag, place) => tag !== said[place]) : gold !== said;
}

function textOf(source, k) {
  return source.whole ? source.whole[k] : source.tokens[k].join(" ");
}

// Where each sentence's rows of weights begin: its tokens without those that have no row.
function offsetsOf(source) {
  const found = [0];
  source.tokens.forEach((tokens, k) => found.push(found[k] + tokens.length - (source.gaps[k] || []).length));
  return found;
}

function showInside(place, inside, left) {
  if (!inside.looks.length) {
    place.append(element("p", { class: "note" }, "No run can be looked into: its store or its weights are gone."), missing(left));
    return;
  }
  // Tokens that differ in their weights are worth most of a look.
  const worth = (look) => (look.varies ? 1 : 0) + (inside.sources[look.source].whole ? 0 : 2);
  const first = inside.looks.reduce((best, look) => (worth(look) > worth(best) ? look : best));
  const state = { look: first, errors: false, text: "", kind: "", shown: LIST_STEP, current: null, summed: null };
  const taskOf = (look) => `${look.task} \u2192 ${look.column}`;
  const tasks = [...new Set(inside.looks.map(taskOf))];
  const list = element("ul", { class: "sentences", "aria-label": "Sentences" });
  const detail = element("div", { "aria-live": "polite" });
  const status = element("p", { class: "note", role: "status" });
  const boards = element("div", { class: "grid2" });
  const runs = select([], (value) => { state.look = inside.looks[Number(value)]; redraw(true); });
  const task = select(tasks.map((name) => [name, name.replace(/^(.*· (.*)) → \2$/, "$1")]), (value) => { fillRuns(value); redraw(false); });
  const text = element("input", { type: "search", placeholder: "words in it", on: { input: () => { state.text = text.value.toLowerCase(); state.shown = LIST_STEP; redraw(true); } } });
  const errors = element("input", { type: "checkbox", on: { change: () => { state.errors = errors.checked; redraw(false); } } });
  const kinds = select([["", "any"], ...inside.kinds.slice(1).map((kind, number) => [String(number + 1), kind])], (value) => { state.kind = value; redraw(false); });
  const kindLabel = labelled("Mistake", kinds);

  function fillRuns(name) {
    const those = inside.looks.map((look, number) => [number, look]).filter(([, look]) => taskOf(look) === name);
    const method = state.look.method;
    runs.replaceChildren(...those.map(([number, look]) => element("option", { value: number }, `${look.method}, ${look.score}${look.weights ? "" : " (no layer weights)"}`)));
    const same = those.find(([, look]) => look.method === method) || those[0];
    runs.value = String(same[0]);
    state.look = same[1];
  }

  function redraw(keep) {
    const look = state.look;
    const source = inside.sources[look.source];
    kindLabel.hidden = look.kind !== "spans";
    errors.parentElement.hidden = look.kind === "number";
    const kept = [];
    for (let k = 0; k < source.tokens.length; k += 1) {
      if (state.errors && look.kind !== "number" && !isWrong(look, source, k)) continue;
      if (state.kind && look.kind === "spans" && !look.mistakes[k].some(([kind]) => String(kind) === state.kind)) continue;
      if (state.text && !textOf(source, k).toLowerCase().includes(state.text)) continue;
      kept.push(k);
    }
    const shown = kept.slice(0, state.shown);
    if (!keep || !kept.includes(state.current)) state.current = kept.length ? kept[0] : null;
    list.replaceChildren(...shown.map((k) => {
      const wrong = look.kind !== "number" && isWrong(look, source, k);
      const button = element("button", { type: "button", "aria-current": k === state.current ? "true" : null, on: { click: () => { state.current = k; redraw(true); } } },
        wrong ? element("span", { class: "wrong" }, "✗ ") : null, wrong ? element("span", { class: "hidden" }, "error: ") : null, textOf(source, k));
      return element("li", {}, button);
    }));
    if (kept.length > shown.length) {
      list.append(element("li", {}, element("button", { type: "button", on: { click: () => { state.shown += LIST_STEP * 4; redraw(true); } } }, `Show more of ${kept.length}`)));
    }
    const part = source.tokens.length < look.examples ? `, drawn at random from the ${look.examples.toLocaleString("en")} of ${look.split}` : ` of ${look.split}`;
    const wrong = look.wrong === null ? "" : `; in all of ${look.split} ${look.wrong.toLocaleString("en")} have an error`;
    status.textContent = `${kept.length} of ${source.tokens.length} examples${part}${wrong}. Run ${look.run}.`;
    detail.replaceChildren(...(state.current === null ? [element("p", { class: "note" }, "No sentence fits.")] : [sentence(look, source, state.current)]));
    if (state.summed !== look) boards.replaceChildren(...summaries(look, inside.kinds));
    state.summed = look;
  }

  function sentence(look, source, k) {
    const [gold, said] = [source.gold[k], look.predicted[k]];
    const made = element("div");
    const answers = element("dl", { class: "answers" });
    if (source.whole) answers.append(element("dt", {}, "text"), element("dd", {}, source.whole[k]));
    if (!Array.isArray(gold)) {
      const number = (value) => (typeof value === "number" ? value.toFixed(2) : value);
      const wrong = look.kind !== "number" && gold !== said;
      answers.append(element("dt", {}, "gold"), element("dd", {}, number(gold)), element("dt", {}, "predicted"), element("dd", { class: wrong ? "wrong" : null }, number(said), wrong ? " ✗" : ""));
    } else if (look.kind === "spans") {
      const words = (span) => `“${source.tokens[k].slice(span[1], span[2]).join(" ")}” ${span[0]}`;
      look.mistakes[k].forEach(([kind, one, other]) => {
        const told = one && other ? `${words(one)} taken for ${words(other)}` : words(one || other);
        answers.append(element("dt", { class: "wrong" }, inside.kinds[kind]), element("dd", {}, told));
      });
    }
    if (answers.childElementCount) made.append(answers);
    look.bytes = look.bytes || unpack(look.weights);
    source.offsets = source.offsets || offsetsOf(source);
    made.append(heat(look, source, k));
    if (!look.bytes) made.append(element("p", { class: "note" }, `${look.method} has no layer weights to show.`));
    return made;
  }

  task.value = taskOf(state.look);
  fillRuns(task.value);
  place.append(
    element("p", { class: "note" }, "Of each task and method the run with the best validation score. A cell is the weight of a layer at a token; layer 0 is the embedding output."),
    element("div", { class: "controls" }, labelled("Task", task), labelled("Run", runs), labelled("Search", text), kindLabel, labelled("errors only", errors, "check")),
    status, element("div", { class: "split" }, list, detail), boards, missing(left));
  redraw(false);
}

function heat(look, source, k) {
  const tokens = source.tokens[k];
  const tagged = Array.isArray(source.gold[k]);
  const gaps = new Set(source.gaps[k] || []);
  const layers = look.bytes ? look.layers : [];
  const head = element("tr", {}, element("th", { scope: "col" }, source.whole && tokens.length === 1 ? "row" : "token"),
    ...(tagged ? [element("th", { scope: "col" }, "gold tag, ✗ predicted")] : []),
    ...layers.map((layer) => element("th", { scope: "col", class: "number" }, String(layer))));
  const body = element("tbody");
  let at = source.offsets[k] * layers.length;
  tokens.forEach((token, place) => {
    const row = element("tr", {}, element("th", { scope: "row" }, token));
    if (tagged) {
      const [gold, said] = [source.gold[k][place], look.predicted[k][place]];
      row.append(element("td", {}, gold, gold === said ? null : element("span", { class: "wrong" }, ` ✗ ${said}`)));
    }
    for (let layer = 0; layer < layers.length; layer += 1) {
      const cell = element("td", { class: "weight" });
      if (gaps.has(place)) cell.append("–");
      else {
        const weight = look.bytes[at + layer] / 255;
        cell.style.backgroundColor = `color-mix(in srgb, var(--cell) ${Math.round(100 * weight)}%, var(--paper))`;
        cell.append(weight.toFixed(2));
      }
      row.append(cell);
    }
    if (!gaps.has(place)) at += layers.length;
    body.append(row);
  });
  const caption = look.bytes ? "Layer weights of each token, columns are layers" : "Tokens";
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "heat" }, element("caption", { class: "hidden" }, caption), element("thead", {}, head), body));
}

function summaries(look, kinds) {
  const found = [];
  if (look.entities) {
    const place = element("div");
    const columns = [{ label: "type", kind: "text" }, ...kinds.map((label) => ({ label, kind: "number" }))];
    const rows = Object.entries(look.entities).map(([type, counts]) => [{ t: type }, ...kinds.map((kind) => ({ t: counts[kind].toLocaleString("en"), v: counts[kind] }))]);
    showTable(place, { columns, rows }, { caption: "Entities by kind of mistake", filters: false });
    found.push(element("div", {}, element("h3", {}, "Entities"), element("p", { class: "note" }, `All of ${look.split}. Wrong type: the same words, another type. Wrong boundary: words in common, the same type. Missed: no predicted span touches it. Spurious: it touches no gold span.`), place));
  }
  if (look.confusion.length) found.push(element("div", {}, element("h3", {}, "Gold and predicted classes"), element("p", { class: "note" }, `All of ${look.split}; lines are gold, columns predicted; the darker, the larger the share of the gold class.`), confusionTable(look)));
  return found;
}

function confusionTable(look) {
  const totals = new Map();
  look.confusion.forEach(({ gold, count }) => totals.set(gold, (totals.get(gold) || 0) + count));
  look.confusion.forEach(({ predicted }) => { if (!totals.has(predicted)) totals.set(predicted, 0); });
  const order = [...totals.keys()].sort((a, b) => (a === "(others)") - (b === "(others)") || totals.get(b) - totals.get(a) || a.localeCompare(b));
  const cells = new Map(look.confusion.map((one) => [JSON.stringify([one.gold, one.predicted]), one]));
  const head = element("tr", {}, element("th", { scope: "col" }, "gold"), ...order.map((name) => element("th", { scope: "col", class: "turned" }, name)));
  const body = element("tbody", {}, ...order.map((gold) => element("tr", {}, element("th", { scope: "row" }, gold), ...order.map((said) => {
    const one = cells.get(JSON.stringify([gold, said]));
    const cell = element("td", {}, one ? one.count.toLocaleString("en") : "");
    if (one) cell.style.backgroundColor = `color-mix(in srgb, var(--cell) ${Math.round(5 + 95 * one.share)}%, var(--paper))`;
    return cell;
  }))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion matrix" },
    element("table", { class: "confusion" }, element("caption", { class: "hidden" }, "Counts of gold by predicted class"), element("thead", {}, head), body));
}

function missing(left) {
  if (!left.length) return "";
  return element("div", { class: "note" }, element("p", {}, "Left out:"), element("ul", {}, ...left.map((text) => element("li", {}, text))));
}
