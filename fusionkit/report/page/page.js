"use strict";
// The page: what stands where, the theme, the foot.

const THEMES = ["auto", "light", "dark"];

function showProvenance(place, told) {
  const list = element("dl");
  const add = (term, ...values) => list.append(element("dt", {}, term), element("dd", {}, ...values));
  for (const encoder of told.encoders) {
    const size = encoder.parameters ? `, ${encoder.parameters.toLocaleString("en")} parameters` : "";
    const hash = encoder.weights ? [`; weights sha256 `, element("code", {}, encoder.weights)] : [];
    add("encoder", `${encoder.name}${encoder.revision ? ` at ${encoder.revision}` : ""}${size}`, ...hash);
  }
  for (const store of told.stores) {
    const sizes = Object.entries(store.examples).map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(", ");
    const versions = store.versions ? `; encoded with ${Object.entries(store.versions).map(([name, version]) => `${name} ${version}`).join(", ")}` : "";
    add("store", `${store.data}: identity `, element("code", {}, store.digest), `, rows of ${store.rows}, layers ${store.layers.join(", ")}${store.dtype ? `, ${store.dtype}` : ""}${sizes ? `; ${sizes}` : ""}${versions}`, store.there ? "" : element("strong", {}, "; gone: its runs cannot be looked into"));
  }
  for (const runs of told.runs) add("runs", `${runs.runs.toLocaleString("en")} in `, element("code", {}, runs.folder));
  add("versions", Object.entries(told.versions).map(([name, version]) => `${name} ${version}`).join(", ") + `, Python ${told.python}`);
  const commands = [...new Set(told.stores.map((store) => store.encode)), told.command];
  place.append(list, element("p", { class: "note" }, "Made by these commands; between them stands the fusionkit fit of each folder of runs, whose options are in the table of every run and in each run.json."),
    element("pre", { tabindex: "0" }, element("code", {}, commands.join("\n"))));
}

function showThemeButton() {
  const button = document.getElementById("theme");
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme === "auto" ? "system" : theme}`;
  };
  let theme = "auto";
  try { theme = localStorage.getItem("fusionkit-theme") || "auto"; } catch { /* a page from a file may have no storage */ }
  show(THEMES.includes(theme) ? theme : "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    show(next);
    try { localStorage.setItem("fusionkit-theme", next); } catch { /* as above */ }
  });
}

function showPage() {
  const report = JSON.parse(document.getElementById("report").textContent);
  const at = (id) => document.getElementById(id);
  showThemeButton();
  at("title").textContent = report.title;
  at("about").textContent = report.about;
  at("about").hidden = !report.about;
  at("lead").textContent = report.lead;
  for (const matrix of report.matrices) {
    const place = element("div");
    at("matrix").append(place);
    const tasks = report.matrices.length > 1 ? matrix.columns.slice(1).map((column) => column.label).join(", ") : "each task";
    showTable(place, matrix, { caption: `Score of each method on ${tasks}`, colours: report.colours, filters: false, whole: true });
  }
  const notes = ["The best of each column is shaded, and what a paired test does not tell from it (p > 0.05). Click a header to sort.", ...report.notes];
  if (report.matrices.some((matrix) => matrix.rows.some((row) => row.some((cell) => cell.x)))) notes.push("* p ≤ 0.05, ** p ≤ 0.01, *** p ≤ 0.001 against the baseline.");
  at("notes").append(...notes.map((text) => element("p", { class: "note" }, text)));
  for (const name of ["groups", "runs"]) {
    const details = at(`${name}-details`);
    details.addEventListener("toggle", () => {
      if (!details.open || details.dataset.made) return;
      details.dataset.made = "1";
      showTable(at(name), report[name], { caption: details.querySelector("summary").textContent, colours: report.colours, head: name === "groups" ? 2 : 0 });
    });
  }
  showCharts(at("charts"), report.sections, report.config);
  showInside(at("inside-body"), report.inside, report.left_out);
  showProvenance(at("provenance-body"), report.provenance);
  const links = [["summary", "Summary"], ...report.sections.map((section) => [section.id, section.title]), ["inside", "A look inside"], ["provenance", "Where this comes from"]];
  at("contents").append(...links.map(([id, text]) => element("a", { href: `#${id}` }, text)));
  document.documentElement.dataset.ready = "yes";
  performance.mark("report-ready");
}

showPage();
