// Which section is shown: #/SECTION?FILTERS, #/group/ID or #/map/ID; anything else is the coverage.
const makers = new Map([["candidates", candidatesView], ["findings", findingsView]]);
if (record.decisions) {
  makers.clear();
  const all = { decisions: decisionsView, groups: groupsView, maps: mapsView, claims: claimsView, candidates: candidatesView, findings: findingsView };
  for (const [name, maker] of Object.entries(all)) makers.set(name, maker);
}
if (record.diff) makers.set("changes", changesView);
const made = new Map();

function viewOf(name) {
  if (!made.has(name)) made.set(name, makers.get(name)());
  return made.get(name);
}

function counts() {
  const claims = (record.maps || []).reduce((sum, item) => sum + (item.map.claims || []).length, 0);
  return {
    decisions: (record.decisions || []).length, groups: groups.size, maps: maps.size, claims, candidates: audit.candidates.length,
    findings: audit.findings.length, changes: record.diff ? (record.diff.changes || []).length : 0,
  };
}

function parse(hash) {
  const [, path, search] = /^#\/([^?]*)\??(.*)$/.exec(hash) || [null, "coverage", ""];
  const [name, ...rest] = path.split("/");
  let id = rest.join("/");
  try {
    id = decodeURIComponent(id);
  } catch {
    id = "";
  }
  return { name, id, query: new URLSearchParams(search) };
}

function pageOf(name, id, query) {
  if (makers.has(name)) return listSection(name, viewOf(name), query);
  if (name === "group" && groups.has(id)) return groupPage(id);
  if (name === "map" && maps.has(id)) return mapPage(id);
  return el("section", {}, el("h1", { tabindex: "-1" }, "Not in this report"),
    el("p", { class: "note" }, `There is no ${name} ${id}. `, link("#/coverage", "To the coverage")));
}

const view = document.getElementById("view");
const coverage = document.getElementById("coverage");
const owner = { group: "groups", map: "maps" };

function show(moveFocus) {
  const { name, id, query } = parse(location.hash);
  const onCoverage = name === "coverage" || name === "";
  coverage.hidden = !onCoverage;
  view.replaceChildren();
  if (!onCoverage) view.append(pageOf(name, id, query));
  const here = onCoverage ? "coverage" : owner[name] || name;
  for (const item of document.querySelectorAll("#sections a")) {
    if (item.dataset.name === here) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  const heading = onCoverage ? coverage.querySelector("h1") : view.querySelector("h1");
  document.title = `${heading.textContent} - ${document.querySelector(".title").textContent}`;
  if (moveFocus) {
    window.scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
}

function sections() {
  const nav = document.getElementById("sections");
  const found = counts();
  const item = (name, text, count) => el("li", {}, el("a", { href: `#/${name}`, "data-name": name }, text,
    count === undefined ? "" : el("span", { class: "number" }, count.toLocaleString("en"))));
  nav.append(el("ul", {}, item("coverage", "Coverage"),
    [...makers.keys()].map((name) => item(name, name[0].toUpperCase() + name.slice(1), found[name]))));
  nav.hidden = false;
}

// Light, dark, or what the system says; kept for the next time where the browser lets a file keep something.
function themes() {
  const button = document.getElementById("theme");
  const order = ["auto", "light", "dark"];
  let now = "auto";
  try {
    now = localStorage.getItem("kernelmap-theme") || "auto";
  } catch { /* a file may not keep anything here: the choice lasts as long as the page */ }
  const apply = () => {
    if (now === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = `Theme: ${now}`;
  };
  button.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    try {
      localStorage.setItem("kernelmap-theme", now);
    } catch { /* as above */ }
    apply();
  });
  apply();
  button.hidden = false;
}

// The skip link moves the focus and leaves the address, which says what is shown, as it is.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", () => show(true));
themes();
sections();
show(false);
