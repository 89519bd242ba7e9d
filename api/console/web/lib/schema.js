// Checks arguments against the part of JSON Schema that tools use, so that a person who edits them sees at once which
// field is wrong. An unknown keyword passes here: the server checks again, and decides.

/** @typedef {Record<string, any>} Schema */
/** @typedef {{field: string, text: string}} Flaw */

const MOST_FLAWS = 20;
const DEEPEST = 40;

/**
 * The flaws, at most 20, each with the path of its field (empty: the whole value).
 * @param {unknown} value
 * @param {Schema} schema
 * @returns {Flaw[]}
 */
export function flawsOf(value, schema) {
  /** @type {Flaw[]} */
  const found = [];
  check(value, schema, "", { root: schema, found, depth: 0 });
  return found.slice(0, MOST_FLAWS);
}

/** @typedef {{root: Schema, found: Flaw[], depth: number}} Check */

/**
 * @param {unknown} value
 * @param {any} given
 * @param {string} field
 * @param {Check} state
 */
function check(value, given, field, state) {
  if (state.depth > DEEPEST || state.found.length >= MOST_FLAWS) return;
  if (given === false) state.found.push({ field, text: "is not allowed" });
  const schema = resolved(given, state.root);
  if (schema === null) return;
  const inner = { ...state, depth: state.depth + 1 };
  if (!hasType(value, schema.type)) {
    state.found.push({ field, text: `must be ${typeNames(schema.type)}, is ${typeOf(value)}` });
    return;
  }
  checkChoices(value, schema, field, inner);
  if (typeof value === "string") checkText(value, schema, field, state.found);
  if (typeof value === "number") checkNumber(value, schema, field, state.found);
  if (Array.isArray(value)) checkList(value, schema, field, inner);
  else if (isObject(value)) checkFields(value, schema, field, inner);
}

/**
 * @param {unknown} value
 * @param {Schema} schema
 * @param {string} field
 * @param {Check} state
 */
function checkChoices(value, schema, field, state) {
  if (Array.isArray(schema.enum) && !schema.enum.some((one) => isSame(one, value))) {
    state.found.push({ field, text: `must be one of ${schema.enum.map((one) => JSON.stringify(one)).join(", ")}` });
  }
  if ("const" in schema && !isSame(schema.const, value)) {
    state.found.push({ field, text: `must be ${JSON.stringify(schema.const)}` });
  }
  for (const part of schema.allOf ?? []) check(value, part, field, state);
  for (const choices of [schema.anyOf, schema.oneOf]) {
    if (Array.isArray(choices)) checkOneFits(value, choices, field, state);
  }
}

/**
 * @param {unknown} value
 * @param {Schema[]} choices
 * @param {string} field
 * @param {Check} state
 */
function checkOneFits(value, choices, field, state) {
  const tried = choices.map((choice) => {
    /** @type {Flaw[]} */
    const found = [];
    check(value, choice, field, { ...state, found });
    return found;
  });
  if (tried.length === 0 || tried.some((found) => found.length === 0)) return;
  // The closest choice has the most useful flaws: one with a wrong field inside, not one of another type.
  const inside = tried.find((found) => found.every((flaw) => flaw.field !== field));
  const texts = tried.flat().map((flaw) => flaw.text);
  state.found.push(...(inside ?? [{ field, text: [...new Set(texts)].join(", or ") }]));
}

/**
 * @param {string} value
 * @param {Schema} schema
 * @param {string} field
 * @param {Flaw[]} found
 */
function checkText(value, schema, field, found) {
  const length = [...value].length;
  if (length < (schema.minLength ?? 0)) {
    found.push({ field, text: `must have at least ${schema.minLength} characters` });
  }
  if (length > (schema.maxLength ?? Infinity)) {
    found.push({ field, text: `must have at most ${schema.maxLength} characters` });
  }
}

/**
 * @param {number} value
 * @param {Schema} schema
 * @param {string} field
 * @param {Flaw[]} found
 */
function checkNumber(value, schema, field, found) {
  if (value < (schema.minimum ?? -Infinity)) found.push({ field, text: `must be at least ${schema.minimum}` });
  if (value > (schema.maximum ?? Infinity)) found.push({ field, text: `must be at most ${schema.maximum}` });
  if (value <= (schema.exclusiveMinimum ?? -Infinity)) {
    found.push({ field, text: `must be more than ${schema.exclusiveMinimum}` });
  }
  if (value >= (schema.exclusiveMaximum ?? Infinity)) {
    found.push({ field, text: `must be less than ${schema.exclusiveMaximum}` });
  }
}

/**
 * @param {unknown[]} value
 * @param {Schema} schema
 * @param {string} field
 * @param {Check} state
 */
function checkList(value, schema, field, state) {
  if (value.length < (schema.minItems ?? 0)) {
    state.found.push({ field, text: `must have at least ${schema.minItems} items` });
  }
  if (value.length > (schema.maxItems ?? Infinity)) {
    state.found.push({ field, text: `must have at most ${schema.maxItems} items` });
  }
  if (schema.items === undefined) return;
  value.forEach((item, index) => check(item, schema.items, `${field}[${index}]`, state));
}

/**
 * @param {Record<string, unknown>} value
 * @param {Schema} schema
 * @param {string} field
 * @param {Check} state
 */
function checkFields(value, schema, field, state) {
  const known = schema.properties ?? {};
  for (const name of schema.required ?? []) {
    if (!Object.hasOwn(value, name)) state.found.push({ field: path(field, name), text: "is missing" });
  }
  for (const [name, inner] of Object.entries(value)) {
    if (Object.hasOwn(known, name)) check(inner, known[name], path(field, name), state);
    else if (schema.additionalProperties === false && !schema.patternProperties) {
      const names = Object.keys(known).join(", ") || "none";
      state.found.push({ field: path(field, name), text: `is not a parameter of this tool; it has: ${names}` });
    } else if (isObject(schema.additionalProperties)) {
      check(inner, schema.additionalProperties, path(field, name), state);
    }
  }
}

/**
 * The schema behind a reference inside the document; null for references that cannot be followed here.
 * @param {any} schema
 * @param {Schema} root
 * @returns {Schema | null}
 */
function resolved(schema, root) {
  let current = schema;
  for (let hops = 0; isObject(current) && typeof current.$ref === "string"; hops += 1) {
    if (hops > DEEPEST || !current.$ref.startsWith("#/")) return null;
    const names = current.$ref.slice(2).split("/");
    current = names.reduce(
      (/** @type {any} */ place, name) => place?.[name.replaceAll("~1", "/").replaceAll("~0", "~")],
      root,
    );
  }
  return isObject(current) ? current : null;
}

/** @param {string} field @param {string} name */
function path(field, name) {
  return field ? `${field}.${name}` : name;
}

/** @param {unknown} value @param {unknown} type */
function hasType(value, type) {
  if (type === undefined) return true;
  const actual = typeOf(value);
  const wanted = Array.isArray(type) ? type : [type];
  return wanted.some((one) => one === actual || (one === "number" && actual === "integer"));
}

/** @param {unknown} type */
function typeNames(type) {
  return Array.isArray(type) ? type.join(" or ") : String(type);
}

/** @param {unknown} value */
function typeOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value;
}

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Whether two JSON values are equal; the order of fields does not matter.
 * @param {unknown} one
 * @param {unknown} other
 * @returns {boolean}
 */
export function isSame(one, other) {
  if (Array.isArray(one) && Array.isArray(other)) {
    return one.length === other.length && one.every((item, index) => isSame(item, other[index]));
  }
  if (isObject(one) && isObject(other)) {
    const names = Object.keys(one);
    const sameSize = names.length === Object.keys(other).length;
    return sameSize && names.every((name) => Object.hasOwn(other, name) && isSame(one[name], other[name]));
  }
  return one === other;
}
