"use strict";
// Charts: Vega-Lite specifications, laid out for the width there is, drawn when they come near the window or when the
// page has nothing else to do. Their colours are the style sheet's, so that a change of theme draws nothing anew.

const PANEL = { least: 215, most: 330 };

// Facets get as many columns as fit, fewer where the lines are then equally long; a panel's width is what is left beside its axis.
function fitted(spec, width, config) {
  const copy = structuredClone(spec);
  const meta = copy.usermeta;
  const gap = 24;
  const names = Math.min(meta.names, Math.floor(width * 0.45));
  const parts = copy.concat || [copy.spec];
  const square = meta.square ? parts[0].width : null;
  const side = meta.free ? names : 0; // labels beside every panel, or beside the first of a line
  const room = width - names - 6;
  const fits = Math.floor((room + gap + side) / ((square || PANEL.least) + gap + side));
  const most = Math.max(1, Math.min(meta.panels, square ? 2 : 4, fits));
  const even = Math.ceil(meta.panels / Math.ceil(meta.panels / most));
  const columns = meta.pairs && most > 1 ? most - (most % 2) : even;
  const share = Math.floor((room - (columns - 1) * (gap + side)) / columns);
  copy.columns = columns;
  copy.spacing = { column: gap + side, row: 34 + meta.below };
  const wide = Math.max(110, square ? Math.min(square, share) : Math.min(share, columns === 1 ? 560 : PANEL.most));
  parts.forEach((part) => { part.width = wide; });
  delete copy.usermeta;
  // Long names of a heat map's lines are cut where a phone has no room for them.
  const axisY = { ...config.axisY, labelLimit: names };
  const legend = { ...config.legend, columns: Math.max(1, Math.floor(width / 165)) };
  return { ...copy, config: { ...config, legend, axisY, autosize: { type: "pad" } } };
}

// The rows behind a chart: its data sets as the specification holds them.
function rowsOf(spec) {
  return Object.values(spec.datasets || {}).flat();
}

function csvOf(rows) {
  if (!rows.length) return "";
  const names = Object.keys(rows[0]);
  const quoted = (value) => {
    const plain = value === null || value === undefined ? "" : String(value);
    // A spreadsheet would compute a text that begins like a formula.
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(plain) && !/^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/.test(plain) ? `'${plain}` : plain;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names.join(","), ...rows.map((row) => names.map((name) => quoted(row[name])).join(","))].join("\n") + "\n";
}

const drawn = new Map(); // place → {spec, width, done}

// `ast` makes Vega read its expressions instead of compiling them: the page's policy allows no eval.
async function drawChart(place, config) {
  const told = drawn.get(place);
  const width = Math.floor(place.clientWidth);
  if (told.width === width || width === 0) return;
  told.width = width;
  const result = await vegaEmbed(place, fitted(told.spec, width, config), {
    actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true, theme: "custom" },
  });
  const svg = place.querySelector("svg");
  if (svg) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", told.label);
    svg.removeAttribute("aria-roledescription");
  }
  if (told.view) told.view.finalize();
  told.view = result.view;
  told.done = true;
}

function dataDetails(rows, title) {
  const details = element("details", {}, element("summary", {}, `Data (${rows.length.toLocaleString("en")} ${rows.length === 1 ? "row" : "rows"})`));
  details.addEventListener("toggle", () => {
    if (!details.open || details.dataset.made) return;
    details.dataset.made = "1";
    const names = Object.keys(rows[0] || {});
    const number = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toString());
    const columns = names.map((label) => ({ label: label.replaceAll("_", " "), kind: rows.some((row) => typeof row[label] === "number") ? "number" : "text" }));
    const cells = rows.map((row) => names.map((name) => {
      const value = row[name];
      if (value === null || value === undefined) return { t: "–" };
      return typeof value === "number" ? { t: number(value), v: value } : { t: String(value) };
    }));
    const place = element("div");
    details.append(place);
    showTable(place, { columns, rows: cells }, { caption: `The data of the chart ${title}`, head: -1 });
  });
  return details;
}

function showCharts(place, sections, config) {
  const waiting = [];
  for (const section of sections) {
    const shown = element("section", { id: section.id, "aria-labelledby": `${section.id}-title` }, element("h2", { id: `${section.id}-title` }, section.title));
    for (const chart of section.charts) {
      const rows = rowsOf(chart.spec);
      // A chart wider than the page scrolls, and without a pointer only what has the focus does.
      const spot = element("div", { class: "chart", tabindex: "0" });
      const link = element("a", { href: "#", download: `${chart.name}.csv` }, "Download CSV");
      // Made when it is asked for: most links are never followed.
      const fill = () => { link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(csvOf(rows)); };
      for (const event of ["pointerdown", "focus", "click"]) link.addEventListener(event, fill, { once: true });
      shown.append(element("figure", { id: `figure-${chart.name}` },
        element("h3", {}, chart.title), element("figcaption", {}, chart.caption), spot,
        element("div", { class: "links" }, link, dataDetails(rows, chart.title))));
      drawn.set(spot, { spec: chart.spec, width: 0, done: false, view: null, label: `${chart.title}. ${chart.caption} The data stand below it as a table.` });
      waiting.push(spot);
    }
    place.append(shown);
  }
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawChart(entry.target, config).catch(console.error);
  }, { rootMargin: "400px" });
  waiting.forEach((spot) => near.observe(spot));
  const drawRest = () => Promise.all(waiting.filter((spot) => !drawn.get(spot).done).map((spot) => drawChart(spot, config)));
  window.addEventListener("beforeprint", () => drawRest().catch(console.error));
  // One after the other whenever the page is idle: a page that is printed at once has them all.
  const idle = window.requestIdleCallback || ((act) => setTimeout(act, 200));
  const next = () => {
    const spot = waiting.find((one) => !drawn.get(one).done && one.clientWidth > 0);
    if (!spot) { document.documentElement.dataset.charts = "drawn"; return; }
    drawChart(spot, config).catch(console.error).finally(() => { drawn.get(spot).done = true; idle(next); });
  };
  idle(next);
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => waiting.forEach((spot) => { if (drawn.get(spot).done) drawChart(spot, config).catch(console.error); }), 250);
  });
}
