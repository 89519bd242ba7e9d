// Runs one JavaScript call inside Node.js, and writes its result as one frame, as child_call.py does for Python.
//
// It reads `{source, function, arguments, parameters, environment, text_limit}` as JSON from standard input. It writes
// four bytes of length, big-endian, then JSON `{status, text, truncated, is_text}` to descriptor 3. The source is a
// module. Without a `function` it is a program: its value is the default export, and it ends with its event loop.
//
// It takes what it needs before foreign code can replace it, and trusts nothing that the tool has changed.
"use strict";
const { closeSync, openSync, readFileSync, writeSync } = require("node:fs");
const { getEventListeners } = require("node:events");
const { inspect } = require("node:util");
const { parse, stringify } = JSON;
const { hasOwn } = Object;
const { from: bytes, alloc, concat } = Buffer;
const exit = process.reallyExit.bind(process);
const RESULT = 3;
const NAME = "tool.ts";
const OURS = /^ +at .*(\[eval\]|node:internal)/;

const call = parse(readFileSync(0, "utf8"));
closeSync(0);
openSync("/dev/null", "r");
Object.assign(process.env, call.environment);
process.argv = [NAME];

const text = `${call.source}\n//# sourceURL=${NAME}`;
const address = `data:text/javascript;charset=utf-8,${encodeURIComponent(text)}`;

let isOver = false;

function finish(status, said, isText) {
  if (isOver) return;
  isOver = true;
  const whole = `${said}`;
  const kept = bytes(whole.slice(0, call.text_limit)).toString(); // half a surrogate pair becomes a character
  const frame = { status, text: kept, truncated: whole.length > call.text_limit, is_text: isText };
  const body = bytes(stringify(frame));
  const length = alloc(4);
  length.writeUInt32BE(body.length);
  let rest = concat([length, body]);
  while (rest.length) rest = rest.subarray(writeSync(RESULT, rest));
  exit(status === "success" ? 0 : 1);
}

// Renders a string unchanged, anything else as JSON, and what JSON cannot express as Node.js prints it.
function asText(value) {
  if (typeof value === "string") return value;
  try {
    return stringify(value, (_, part) => (isForJson(part) ? part : inspect(part))) ?? inspect(value);
  } catch {
    return inspect(value);
  }
}

function isForJson(part) {
  if (typeof part === "bigint" || part instanceof Error || part instanceof Map || part instanceof Set) return false;
  return typeof part !== "number" || Number.isFinite(part);
}

function named(error) {
  const isError = error instanceof Error;
  const name = isError ? `${error.name}` : "Error";
  const value = (isError ? `${error.message}` : inspect(error)).replaceAll(address, NAME);
  const stack = (isError ? `${error.stack}` : inspect(error)).replaceAll(address, NAME).split("\n");
  return { name, value, traceback: stack.filter((line) => !OURS.test(line)).join("\n") };
}

function fail(error) {
  try {
    tell(error);
  } catch {
    exit(1); // a tool may throw an object whose getters throw, or may have replaced what this needs
  }
}

function tell(error) {
  const said = named(error);
  if (!call.function) finish("error", stringify({ results: [], error: said }), false);
  writeSync(2, `${said.traceback}\n`);
  const detail = said.value ? `${said.name}: ${said.value}` : said.name;
  finish("error", `Error executing function ${call.function}: ${detail}`, true);
}

// SIGTERM cancels the call. A tool that listens for it, or to `toolCancelled`, has the grace period to clean up.
const cancellation = new AbortController();
Object.defineProperty(globalThis, "toolCancelled", { value: cancellation.signal });
process.on("SIGTERM", () => {
  const listens = getEventListeners(cancellation.signal, "abort").length || process.listenerCount("SIGTERM") > 1;
  if (!listens) exit(143);
  cancellation.abort(new Error("the call was cancelled"));
});
process.setUncaughtExceptionCaptureCallback(fail);

async function runFunction() {
  const module = await import(address);
  const found = module[call.function];
  if (typeof found !== "function") throw new ReferenceError(`the source exports no function '${call.function}'`);
  const given = call.parameters.map((name) => (hasOwn(call.arguments, name) ? call.arguments[name] : undefined));
  const result = await found(...given);
  finish("success", asText(result), typeof result === "string");
}

async function runProgram() {
  const module = await import(address);
  process.on("beforeExit", () => {
    const results = module.default === undefined ? [] : [inspect(module.default)];
    finish("success", stringify({ results }), false);
  });
}

process.on("beforeExit", () => {
  if (call.function) fail(new Error("nothing is left that its promise could wait for"));
});
(call.function ? runFunction() : runProgram()).catch(fail);
