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
const examples = JSON.parse(readFileSync(".tools/openapi.examples.json", "utf8"));
const verbs = ["get", "post", "put", "patch", "delete"];
const json = (schema) => ({ "application/json": { schema } });
const header = (description) => ({ description, schema: { type: "string" } });

// Rules that the plugin only tells in words: bytes bound characters from above, and one byte is a character.
function tighten(schema) {
  if (schema.type === "boolean") delete schema.const; // generators make an enum of strings of it
  const text = schema.description ?? "";
  const most = text.match(/string\.max_bytes = (\d+)/);
  if (most) schema.maxLength ??= Number(most[1]);
  if (/string\.min_bytes = 1\b/.test(text)) schema.minLength ??= 1;
  // Numbers are accepted too, but types of generated clients that are one or the other are hard to use, or cannot be.
  if (Array.isArray(schema.type) && schema.type.includes("string") && /int64$/.test(schema.format ?? "")) {
    schema.type = schema.type.includes("null") ? ["string", "null"] : "string";
    schema.pattern ??= schema.minimum > 0 ? "^[1-9][0-9]{0,18}$" : schema.minimum === 0 ? "^[0-9]{1,19}$" : "^-?[0-9]{1,19}$";
    delete schema.minimum;
  }
  // Python's regular expressions know no classes of Unicode, nor JavaScript's without a flag: what lies beyond Latin-1
  // is left to the server there.
  if (schema.pattern)
    schema.pattern = schema.pattern.replaceAll("\\p{C}", "\\x00-\\x1f\\x7f-\\x9f").replaceAll("\\p{Z}", "\\x20\\xa0");
}

// A field is required if its rules refuse what it is when it is not set. One that may be null has presence.
function required(schema) {
  if (Array.isArray(schema.type) && schema.type.includes("null")) return false;
  return (
    (schema.type === "string" && schema.pattern !== undefined && !new RegExp(schema.pattern).test("")) ||
    schema.minLength > 0 ||
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

// One of several fields is written as all of them, none required: generators make types of that which can be read. An
// example has the last of them.
const alternatives = new Map();
function flatten(schema) {
  const [own, choice] = schema.allOf ?? [];
  if (!choice?.oneOf) return;
  const names = choice.oneOf.flatMap((part) => Object.keys(part.properties));
  schema.properties = Object.assign({}, own.properties, ...choice.oneOf.map((part) => part.properties));
  schema.description = `${schema.description}\n\nOne of ${names.join(", ")} is set, or a newer field that is not listed here.`;
  delete schema.allOf;
  alternatives.set(schema, names.slice(0, -1));
}

// An example of a schema, from the names of its fields: those that mean different things in different messages have
// the message's name before theirs.
function example(schema, name, owner = "") {
  const type = schema.$ref?.split("/").pop() ?? "";
  const target = schema.$ref ? doc.components.schemas[type] : schema;
  const own = `${owner.split(".").pop()}.${name}`;
  if (own in examples) return examples[own];
  if (target.properties) {
    const keys = Object.keys(target.properties).filter((key) => !alternatives.get(target)?.includes(key));
    const fields = keys.map((key) => [key, example(target.properties[key], key, type || (target.title ?? ""))]);
    return Object.fromEntries(fields.filter(([, value]) => value !== undefined));
  }
  if (name in examples && (!target.enum || target.enum.includes(examples[name])))
    return target.type === "string" && typeof examples[name] === "number" ? String(examples[name]) : examples[name];
  if (target.enum) return target.enum[1] ?? target.enum[0];
  if (target.type === "object" && !target.additionalProperties && !target.oneOf && !target.anyOf) return {}; // a message without fields
  return target.type === "array" ? [example(target.items)].filter((value) => value !== undefined) : undefined;
}

// Unknown fields are ignored, not refused.
walk(doc, (node) => {
  flatten(node);
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

// The streams have no annotations: they answer with events instead of a message.
doc.paths["/api/v1/stream"] = {
  get: {
    tags: ["DeliveryService"],
    summary: "Stream",
    operationId: "DeliveryService_Stream",
    description: [
      "Live delivery as server-sent events: a hello, what was missed, then everything as it is committed. Each event is a frame of the RPC parley.delivery.v1.DeliveryService/Subscribe in JSON (hello, message, membershipChange, chat, head, memberState, heartbeat, profileChanged, reset, end); something comes at least every 15 s.",
      "An id says how far the stream has got. A request with it in Last-Event-ID resumes after it, without a gap: up to 500 changes of each of the 100 chats that changed last, beyond that a reset; for other chats a head that says that there is something newer, which ListChanges returns. What came after the last id comes again; a chat's versions tell. A token of Sync may be there too. Without an id the heads of all chats come first.",
      "The last event has the name end and is a google.rpc.Status, whose reason says whether to come again: DRAINING, SLOW and RESYNC at once, TOKEN_EXPIRED with a new token, SESSION_REVOKED and REPLACED not. The retry field says when.",
      "Nothing needs to be acknowledged. Who wants to (RPC Ack) counts the frames: the first has position 1. The access token is in the header as everywhere, never in the address. Browsers' EventSource cannot send it: it opens the stream with a ticket.",
    ].join("\n\n"),
    parameters: [
      { name: "Last-Event-ID", in: "header", description: "Id of the last event that the client has taken, or a token of Sync.", schema: { type: "string", maxLength: 8192 } },
      { name: "lastEventId", in: "query", description: "The same, for clients that cannot set the header in their first request.", schema: { type: "string", maxLength: 8192 } },
      { name: "ticket", in: "query", description: "A ticket (AuthService/CreateStreamTicket) instead of the header Authorization. It is good once: another stream needs another one.", schema: { type: "string", maxLength: 16384 } },
      { name: "catchUpOnly", in: "query", description: "End the stream once it has sent all that was missed: for clients behind proxies that hold a response back until it ends, which come again with the last id after 5 s.", schema: { type: "boolean" }, example: true },
    ],
    responses: {
      200: { description: "The events.", content: { "text/event-stream": { schema: { type: "string" } } } },
      default: { $ref: "#/components/responses/Error" },
    },
  },
};

const inPath = (name) => ({ name, in: "path", required: true, schema: { type: "string", minLength: 1, maxLength: 255 } });
doc.paths["/api/v1/topics/{topic}/subscriptions/{group}/stream"] = {
  get: {
    tags: ["ConsumerService"],
    summary: "StreamMessages",
    operationId: "ConsumerService_StreamMessages",
    description: [
      "Attaches a member of a group and delivers its messages as server-sent events. Each event is a response of the RPC parley.topic.v1.ConsumerService/Consume in JSON (attached, delivery, state, alive, leaseLost, gone); something comes at least once in the heartbeat interval that attached names.",
      "Acknowledge with the session that attached names, at /api/v1/topic-sessions/{session}:ack; each acknowledgement lets the server send as many messages again. What is not acknowledged when the stream ends is delivered again, to another member or to the next stream: an id of an event, and Last-Event-ID, are not needed. Detach before you close the stream: what the member has then counts no attempt.",
      "The access token is in the header as everywhere, never in the address. Browsers' EventSource cannot send it: it opens the stream with a ticket.",
    ].join("\n\n"),
    parameters: [
      inPath("topic"), inPath("group"),
      { name: "ticket", in: "query", description: "A ticket (AuthService/CreateStreamTicket) instead of the header Authorization. It is good once: another stream needs another one.", schema: { type: "string", maxLength: 16384 } },
      { name: "member", in: "query", description: "Name of the member, its own in the group; one is made without it.", schema: { type: "string", maxLength: 255 } },
      { name: "messages", in: "query", description: "Messages that are sent before one is acknowledged; 0 means 1,000.", schema: { type: "integer", minimum: 0, maximum: 1000000 }, example: 100 },
      { name: "bytes", in: "query", description: "Bytes of messages that are sent before one is acknowledged; 0 means 8 MiB.", schema: { type: "integer", minimum: 0, maximum: 1073741824 }, example: 8388608 },
    ],
    responses: {
      200: { description: "The events.", content: { "text/event-stream": { schema: { type: "string" } } } },
      default: { $ref: "#/components/responses/Error" },
    },
  },
};

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
const refusal = {
  code: 7,
  message: "you are not a member of this chat",
  details: [{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", reason: "NOT_A_MEMBER", domain: "parley" }],
};
doc.components.responses = {
  Error: { description: "An error.", content: { "application/json": { schema: { $ref: "#/components/schemas/google.rpc.Status" }, example: refusal } } },
};
doc.components.securitySchemes = { bearer: { type: "http", scheme: "bearer", description: "An access token." } };
doc.security = [{ bearer: [] }];
// Signing in needs no token.
for (const path of ["request-code", "verify-code", "exchange-token", "refresh"]) {
  doc.paths[`/api/v1/auth/${path}`].post.security = [];
}

doc.servers = [{ url: "/", description: "The server that this document comes from." }];
doc.info.license = { name: "Apache License 2.0", identifier: "Apache-2.0" };
doc.info.contact = { name: "Parley", url: "https://github.com/parley-chat/parley" };
doc.info.description += " In requests, numbers are accepted for 64-bit integers, too.";
const duration = doc.components.schemas["google.protobuf.Duration"]; // seconds, not ISO 8601
Object.assign(duration, { description: "A duration in seconds.", pattern: "^-?[0-9]{1,12}(\\.[0-9]{1,9})?s$", examples: ["30s"] });
delete duration.format;
Object.assign(doc.components.schemas["google.protobuf.Timestamp"], { description: "A time, RFC 3339 in UTC.", examples: ["2026-03-01T09:30:00Z"] });
// Examples, once all schemas are as they stay.
for (const item of Object.values(doc.paths)) {
  for (const op of verbs.map((verb) => item[verb]).filter(Boolean)) {
    op.responses["4XX"] = { $ref: "#/components/responses/Error" };
    for (const p of op.parameters ?? []) if (p.name in examples) p.example ??= examples[p.name];
    for (const body of [op.requestBody, ...Object.values(op.responses)]) {
      const content = body?.content?.["application/json"];
      if (content) content.example = example(content.schema);
    }
  }
}

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

// Generated clients take their names from these: chats.createChat(CreateChatRequest), not
// chats.chatServiceCreateChat(ParleyChatV1CreateChatRequest).
const short = (name) => name.replace(/^(parley|google)\.([a-z0-9]+\.)+/, "").replaceAll(".", "");
const schemas = Object.entries(doc.components.schemas).map(([name, schema]) => [short(name), schema]);
if (new Set(schemas.map(([name]) => name)).size < schemas.length) throw new Error("two schemas have the same short name");
doc.components.schemas = Object.fromEntries(schemas);
walk(doc, (node) => {
  if (typeof node.$ref === "string") node.$ref = node.$ref.replace(/(schemas\/)(.*)$/, (_, at, name) => at + short(name));
  if (typeof node.operationId === "string") node.operationId = node.operationId.replace(/^\w+_(\w)/, (_, first) => first.toLowerCase());
});

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
