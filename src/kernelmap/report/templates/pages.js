// Pages of one group and of one map.
function groupPage(id) {
  const { contract, digest, file } = groups.get(id);
  const ladder = ladders.get(id) || [];
  const providers = table(`Maps of ${id}`, ["Map", "Rank", "Phases", "Outcome", "Evidence"]);
  for (const item of ladder.slice(0, PAGE)) {
    const { selection } = item.map;
    const outcome = outcomeOfMap(item.map.id);
    providers.add([mapLink(item.map.id), rankText(selection.status, selection.priority), selection.phases.join(", "),
      badge(outcome, outcome), evidenceText(item)]);
  }
  const rule = contract.equivalence;
  return el("section", { class: "group" },
    el("p", { class: "kind" }, link("#/groups", "Groups"), " / group"),
    el("h1", { tabindex: "-1" }, id),
    el("p", {}, contract.summary),
    facts([["op", contract.op], ["equal means", rule.kind === "byte_exact" ? "the same bytes" : `within ${rule.atol} + ${rule.rtol} × |reference|`],
      ["reference", contract.oracle], ["digest", el("span", { class: "digest" }, digest)], ["declared in", el("span", { class: "place" }, file)]]),
    el("h2", {}, "Maps"), ladder.length ? providers.made : el("p", { class: "note" }, "The group has no provider."),
    ladder.length > PAGE ? el("p", {}, link(`#/maps?${new URLSearchParams({ q: id })}`, `All ${plural(ladder.length, "map")}`)) : null,
    el("h2", {}, "Contract"), ports(contract), rest(contract),
    askedBy(id));
}

function ports(contract) {
  const rows = table("Ports", ["Port", "Kind", "Type", "Shape"]);
  const shape = (port) => `[${(port.shape || []).join(", ")}]`;
  for (const kind of ["inputs", "weights", "state", "outputs"]) {
    for (const port of contract[kind] || []) {
      const domain = port.domain ? ` in ${port.domain.min} … ${port.domain.max}` : "";
      rows.add([port.name, `${kind.replace(/s$/, "")}${port.optional ? ", optional" : ""}${port.access ? `, ${port.access}` : ""}`,
        port.dtype + domain, shape(port)]);
    }
  }
  return rows.made;
}

function rest(contract) {
  const dynamic = contract.dynamic_dims || [];
  const dims = Object.entries(contract.dims).map(([name, text]) => [`${name}${dynamic.includes(name) ? " (at run time)" : ""}`, text]);
  const params = (contract.params || []).map((param) => [param.name, [param.type, (param.choices || []).join(" or "),
    param.min !== undefined && param.min !== null ? `at least ${param.min}` : "", param.max !== undefined && param.max !== null ? `at most ${param.max}` : "",
    param.default !== undefined && param.default !== null ? `default ${param.default}` : ""].filter(Boolean).join(", ")]);
  const more = [...(contract.requires || []).map((text) => ["requires", text]),
    ...Object.entries(contract.alignment || {}).map(([dim, by]) => [dim, `a multiple of ${by}`]),
    ...Object.entries(contract.dtype_vars || {}).map(([name, types]) => [name, types.join(" or ")])];
  const parts = [["Dims", dims], ["Parameters", params], ["Arithmetic", Object.entries(contract.arithmetic || {})], ["Limits", more]];
  return parts.filter(([, pairs]) => pairs.length).map(([title, pairs]) => [el("h3", {}, title), facts(pairs)]);
}

function askedBy(id) {
  const found = decisionsOfGroup.get(id) || [];
  if (!found.length) return [el("h2", {}, "Asked for by"), el("p", { class: "note" }, "No circuit of this report asks for the group.")];
  const rows = table(`What asks for ${id}`, ["Op", "Phase", "Hosts", "Selected"]);
  for (const { entry, decision } of found.slice(0, PAGE)) {
    rows.add([`${entry.circuit} ${decision.name} ${layersText(decision.layers)}`, decision.phase, entry.hosts.join(", "),
      decision.provider ? mapLink(decision.provider) : badge("no provider", "bad")]);
  }
  const query = new URLSearchParams({ q: id });
  return [el("h2", {}, "Asked for by"), rows.made, el("p", {}, link(`#/decisions?${query}`, "These decisions in full"))];
}

function mapPage(id) {
  const item = maps.get(id);
  const { map } = item;
  const { selection } = map;
  const needs = [(map.requires || {}).device || "cpu", ...((map.requires || {}).isa || [])].join(", ");
  const limits = Object.entries((map.constraints || {}).dims || {}).map(([dim, limit]) =>
    Object.entries(limit).filter(([, bound]) => bound !== null).map(([kind, bound]) => `${dim} ${LIMITS[kind]} ${bound}`).join(", "));
  return el("section", { class: "map" },
    el("p", { class: "kind" }, link("#/maps", "Maps"), " / map"),
    el("h1", { tabindex: "-1" }, id),
    el("p", {}, map.summary),
    facts([["group", groupLink(selection.equivalence_group)], ["op", map.op], ["status", `${selection.status}, priority ${selection.priority}`],
      ["phases", selection.phases.join(", ")], ["needs", needs], ["limits", limits.join("; ")],
      ["code", `${map.impl.function} (${map.impl.backend})`],
      ["packs", (map.weight_preparation || []).map((prep) => `${prep.weights.join(", ")} as ${prep.prepared_format}`).join("; ")],
      ["caveats", (map.caveats || []).map((text) => el("p", {}, text))],
      ["digest", el("span", { class: "digest" }, item.digest)], ["declared in", el("span", { class: "place" }, item.file)]]),
    el("h2", {}, "Variants"), variantTable(map), el("h2", {}, "Evidence"), evidencePart(item), claimPart(item), decidedPart(id), findingPart(id));
}

const LIMITS = { min: "≥", max: "≤", multiple_of: "a multiple of" };

function variantTable(map) {
  const rows = table(`Variants of ${map.id}, in the order in which they are tried`, ["Variant", "Guards", "Needs", "Else", "Switch"]);
  for (const variant of map.impl.variants) {
    const guards = Object.entries(variant.shape_constraints || {}).map(([name, bound]) => `${name.slice(0, -4)} ${LIMITS[name.slice(-3)]} ${bound}`);
    rows.add([variant.name, guards.join(" and "), (variant.requires || []).join(", "), variant.fallback || "", variant.kill_switch || ""]);
  }
  return rows.made;
}

function evidencePart(item) {
  const proof = item.evidence;
  if (!proof) return el("p", { class: "note" }, "None: nothing proves that this map meets its contract.");
  return [el("p", {}, evidenceText(item)),
    facts([["result", proof.result], ["cases", String(proof.cases)], ["worst error", String(proof.worst_error)], ["host", proof.host],
      ["ISA paths run", (proof.isa_paths || []).join(", ")], ["not run", (proof.not_run || []).join(", ")],
      ["toolchain", Object.entries(proof.toolchain).map(([name, version]) => `${name} ${version}`).join(", ")],
      ["source", el("span", { class: "digest" }, proof.source_digest)],
      ["reference", el("span", { class: "digest" }, proof.reference_digest)], ["corpus", el("span", { class: "digest" }, proof.corpus_digest)]])];
}

function claimPart(item) {
  const claims = item.map.claims || [];
  if (!claims.length) return null;
  const rows = table("Claims", ["Claim", "Source", "Measured here"]);
  for (const claim of claims) rows.add([claim.text, claim.source, measuredText(claim)]);
  return [el("h2", {}, "Claims"), rows.made];
}

function decidedPart(id) {
  const found = rowsOfMap.get(id) || [];
  if (!found.length) return [el("h2", {}, "Decisions"), el("p", { class: "note" }, "No op of this report asks for its group.")];
  const rows = table(`Decisions about ${id}`, ["Op", "Phase", "Hosts", "Outcome"]);
  for (const row of found.slice(0, PAGE)) {
    const { entry, decision } = row.about;
    rows.add([`${entry.circuit} ${decision.name} ${layersText(decision.layers)}`, decision.phase, entry.hosts.join(", "),
      [badge(row.outcome, row.outcome), (row.candidate.reasons || []).length ? reasonList(row.candidate.reasons) : "",
        el("p", { class: "flip" }, row.candidate.selected ? "" : flipOf(row))]]);
  }
  const query = new URLSearchParams({ q: id });
  return [el("h2", {}, "Decisions"), rows.made, el("p", {}, link(`#/decisions?${query}`, "These decisions in full"))];
}

function findingPart(id) {
  const found = audit.findings.filter((item) => item.message.split(/[^a-z0-9_]+/).includes(id));
  if (!found.length) return null;
  return [el("h2", {}, "Findings"), el("ul", {}, found.map((item) => el("li", {}, badge(item.severity), " ", code(item.code), " ", linked(item.message))))];
}
