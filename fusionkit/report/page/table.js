"use strict";
// Tables: sorted by a click or a key on a header, filtered by text and by choice. Texts become text nodes, never markup.

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function labelled(text, control, kind) {
  if (kind === "check") return element("label", { class: "check" }, control, text);
  return element("label", {}, text, control);
}

function select(options, act) {
  const made = element("select", { on: { change: () => act(made.value) } });
  for (const [value, text] of options) made.append(element("option", { value }, text));
  return made;
}

const TABLE_STEP = 200; // rows that are made at once; the rest when they are asked for

function fillCell(cell, value, colours) {
  if (value.m && colours[value.m]) {
    const dot = element("span", { class: "dot", "aria-hidden": "true" });
    dot.style.background = colours[value.m];
    cell.append(dot);
  }
  cell.append(value.t);
  if (value.x) cell.append(element("span", { class: "stars" }, value.x));
  if (value.s) cell.append(" ", element("span", { class: "small" }, value.s));
  if (value.b) {
    cell.classList.add("best");
    cell.append(element("span", { class: "hidden" }, " (best or not told from it)"));
  }
}

// `table`: {columns: [{label, kind, unit, filter}], rows: [[{t, v, s, b, m, x}]]}; `head`: the column that names a row.
function showTable(place, table, { caption, head = 0, filters = true, colours = {}, whole = false }) {
  const state = { column: null, down: false, text: "", chosen: {}, shown: TABLE_STEP };
  const body = element("tbody");
  const count = element("p", { class: "note", role: "status" });
  const more = element("button", { type: "button", on: { click: () => { state.shown += TABLE_STEP * 5; draw(); } } });
  const made = new Map();
  const texts = table.rows.map((row) => row.map((cell) => `${cell.t} ${cell.s || ""}`).join(" ").toLowerCase());

  function line(number) {
    if (!made.has(number)) {
      const row = element("tr");
      table.rows[number].forEach((value, place) => {
        const column = table.columns[place];
        const cell = place === head ? element("th", { scope: "row" }) : element("td", { class: column.kind === "number" ? "number" : null });
        fillCell(cell, value, colours);
        row.append(cell);
      });
      made.set(number, row);
    }
    return made.get(number);
  }

  function key(number) {
    const cell = table.rows[number][state.column];
    return cell.v === undefined ? (table.columns[state.column].kind === "number" ? null : cell.t) : cell.v;
  }

  function draw() {
    const kept = [];
    for (let number = 0; number < table.rows.length; number += 1) {
      const row = table.rows[number];
      const fits = Object.entries(state.chosen).every(([place, value]) => !value || row[place].t === value);
      if (fits && texts[number].includes(state.text)) kept.push(number);
    }
    if (state.column !== null) {
      const keys = new Map(kept.map((number) => [number, key(number)]));
      const sign = state.down ? -1 : 1;
      kept.sort((one, other) => {
        const [a, b] = [keys.get(one), keys.get(other)];
        if (a === null || b === null) return (a === null) - (b === null) || one - other; // no value comes last
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        return sign * order || one - other;
      });
    }
    body.replaceChildren(...kept.slice(0, state.shown).map(line));
    const all = table.rows.length;
    count.textContent = kept.length === all && kept.length <= state.shown ? "" : `${Math.min(kept.length, state.shown)} of ${all} rows`;
    more.hidden = kept.length <= state.shown;
    more.textContent = `Show more of ${kept.length} rows`;
  }

  const headers = table.columns.map((column, place) => {
    const button = element("button", { type: "button", on: { click: () => {
      state.down = state.column === place ? !state.down : column.kind === "number";
      state.column = place;
      headers.forEach((header, other) => header.setAttribute("aria-sort", other === place ? (state.down ? "descending" : "ascending") : "none"));
      draw();
    } } }, column.label);
    const unit = column.unit ? element("span", { class: "unit" }, column.unit) : null;
    return element("th", { scope: "col", class: column.kind === "number" ? "number" : null, "aria-sort": "none" }, button, unit);
  });
  const controls = element("div", { class: "controls" });
  if (filters && table.rows.length > 3) {
    const input = element("input", { type: "search", placeholder: "any text", on: { input: () => { state.text = input.value.toLowerCase(); draw(); } } });
    controls.append(labelled("Filter", input));
    table.columns.forEach((column, place) => {
      if (!column.filter) return;
      const values = [...new Set(table.rows.map((row) => row[place].t))];
      if (values.length < 2) return;
      controls.append(labelled(column.label, select([["", "all"], ...values.map((value) => [value, value])], (value) => { state.chosen[place] = value; draw(); })));
    });
  }
  const shown = element("table", {}, element("caption", { class: "hidden" }, caption), element("thead", {}, element("tr", {}, ...headers)), body);
  const scroll = element("div", { class: whole ? "scroll whole" : "scroll", tabindex: "0", role: "region", "aria-label": caption }, shown);
  place.replaceChildren(controls, scroll, count, more);
  draw();
}
