// Completes the OpenAPI document that protoc-gen-connect-openapi wrote with what the annotations do not say: status
// codes, errors, authentication, repetition and caching. Writes embed.go beside it, through which the server has it.
//
//   node .tools/openapi.mjs DIRECTORY
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const dir = process.argv[2];
const file = join(dir, "openapi.json");
const doc = JSON.parse(readFileSync(file, "utf8"));
const statuses = JSON.parse(readFileSync("server/internal/rest/status.json", "utf8"));
const verbs = ["get", "post", "put", "patch", "delete"];
const json = (schema) => ({ "application/json": { schema } });
const header = (description) => ({ description, schema: { type: "string" } });

// Rules that the plugin only tells in words: bytes bound characters from above, and one byte is a character.
function tighten(schema) {
  const text = schema.description ?? "";
  const most = text.match(/string\.max_bytes = (\d+)/);
  if (most) schema.maxLength ??= Number(most[1]);
  if (/string\.min_bytes = 1\b/.test(text)) schema.minLength ??= 1;
  if (Array.isArray(schema.type) && schema.type.includes("string") && /int64$/.test(schema.format ?? "")) {
    schema.pattern ??= schema.minimum >= 0 ? "^[0-9]{1,19}$" : "^-?[0-9]{1,19}$";
  }
}

// A field is required if its rules refuse what it is when it is not set. (A bound of characters alone says nothing: fields
// with presence have those too.)
function required(schema) {
  return (
    (schema.type === "string" && schema.pattern !== undefined && !new RegExp(schema.pattern).test("")) ||
    schema.minItems > 0 ||
    schema.minimum > 0 ||
    (schema.not?.enum ?? []).some((v) => v.endsWith("_UNSPECIFIED")) ||
    /min_bytes = [1-9]/.test(schema.description ?? "")
  );
}

function walk(node, visit) {
  if (node === null || typeof node !== "object") return;
  visit(node);
  Object.values(node).forEach((child) => walk(child, visit));
}

// Comments come with their line breaks, rules as lines of code after them.
function prose(text) {
  return text
    .split(/\n\s*\n/)
    .map((paragraph) =>
      paragraph
        .split("\n")
        .map((line) => line.trim().replace(/^[a-z_.]+ \/\/ (.*)$/, "Rule: $1."))
        .filter((line) => line !== "" && !/^\w+\.(min|max)_bytes = \d+$/.test(line))
        .join(" "),
    )
    .filter((paragraph) => paragraph !== "")
    .join("\n\n");
}

// Unknown fields are ignored, not refused.
walk(doc, (node) => {
  if (node.type !== undefined) tighten(node);
  if (typeof node.description === "string") node.description = prose(node.description);
  if (node.additionalProperties === false) delete node.additionalProperties;
  for (const [name, property] of Object.entries(node.properties ?? {})) {
    if (typeof property.title === "string" && property.title.replace(/_/g, "") === name.toLowerCase()) delete property.title;
  }
  if (node.type === "object" && node.properties && !node.required) {
    const names = Object.keys(node.properties).filter((name) => required(node.properties[name]));
    if (names.length > 0) node.required = names;
  }
});

for (const [path, item] of Object.entries(doc.paths)) {
  for (const verb of verbs) {
    const op = item[verb];
    if (!op) continue;
    const ok = op.responses["200"];
    const schema = ok.content["application/json"].schema;
    const service = schema.$ref.match(/schemas\/(.*)\.\w+Response$/)[1] + "." + op.operationId.replace("_", ".");
    const { success, replay } = statuses[service] ?? { success: 200, replay: 200 };
    const body = op.requestBody?.content["application/json"].schema;
    const fields = body?.$ref ? doc.components.schemas[body.$ref.split("/").pop()] : body;
    const repeatable =
      ["requestId", "clientMessageId"].some((name) => fields?.properties?.[name]) || op.parameters?.some((p) => p.name === "requestId");
    const headers = repeatable
      ? { "X-Idempotent-Replay": header('"true" if an earlier request with the same key did this'), "Idempotency-Replayed": header("The same.") }
      : {};
    const caching = verb === "get" ? { ETag: header("Tag of this content; a request with it in If-None-Match may be answered with 304.") } : {};
    const answer = (description, content) => ({ description, headers: { ...headers, ...caching }, ...(content ? { content } : {}) });
    op.responses = {};
    op.responses[success] = success === 204 ? answer("Done.") : answer(success === 201 ? "Created." : "Success.", json(schema));
    if (replay !== success) op.responses[replay] = answer("It was there already, or an earlier request with the same key created it.", json(schema));
    if (verb === "get") op.responses[304] = { description: "The client has this content." };
    op.responses.default = { $ref: "#/components/responses/Error" };
    if (op.requestBody) op.requestBody.required = (fields?.required ?? []).length > 0;
    op.parameters ??= [];
    for (const p of op.parameters) delete p.schema.title;
    if (repeatable) {
      op.parameters.push({
        name: "Idempotency-Key", in: "header", description: "Makes the request safe to repeat; the same as the field.",
        schema: fields?.properties?.clientMessageId ? { type: "string", format: "uuid" } : { type: "string", pattern: "^[A-Za-z0-9_-]{1,64}$" },
      });
    }
    if (verb === "get") op.parameters.push({ name: "If-None-Match", in: "header", description: "ETag that the client has.", schema: { type: "string" } });
    if (op.parameters.length === 0) delete op.parameters;
  }
}

doc.components.schemas["google.rpc.Status"] = {
  type: "object",
  description: "An error. The ErrorInfo among the details has a reason that does not change with the text.",
  required: ["code", "message"],
  properties: {
    code: { type: "integer", format: "int32", description: "Code of google.rpc.Code." },
    message: { type: "string", description: "What is wrong, for developers." },
    details: {
      type: "array",
      description: "google.rpc.ErrorInfo (reason, domain parley), and where they apply BadRequest and RetryInfo.",
      items: { type: "object", required: ["@type"], properties: { "@type": { type: "string" } }, additionalProperties: true },
    },
  },
};
doc.components.responses = { Error: { description: "An error.", content: json({ $ref: "#/components/schemas/google.rpc.Status" }) } };
doc.components.securitySchemes = { bearer: { type: "http", scheme: "bearer", description: "An access token." } };
doc.security = [{ bearer: [] }];

// What no path leads to is left out.
const used = new Set();
const follow = (node) =>
  walk(node, (n) => {
    const name = n.$ref?.match(/^#\/components\/schemas\/(.*)$/)?.[1];
    if (name && !used.has(name)) {
      used.add(name);
      follow(doc.components.schemas[name]);
    }
  });
follow(doc.paths);
follow(doc.components.responses);
for (const name of Object.keys(doc.components.schemas)) if (!used.has(name)) delete doc.components.schemas[name];
const tags = new Set(Object.values(doc.paths).flatMap((item) => verbs.flatMap((verb) => item[verb]?.tags ?? [])));
doc.tags = (doc.tags ?? []).filter((tag) => tags.has(tag.name));

writeFileSync(file, JSON.stringify(doc, null, 2) + "\n");
writeFileSync(
  join(dir, "embed.go"),
  `// Code generated by .tools/generate. DO NOT EDIT.

// Package openapi holds the OpenAPI document of the REST API.
package openapi

import _ "embed"

// Document is the document, in JSON.
//
//go:embed openapi.json
var Document []byte
`,
);
