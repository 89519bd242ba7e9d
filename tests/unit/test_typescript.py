"""TypeScript becomes JavaScript by leaving its types out: nothing moves, and nothing is run."""

import subprocess
from pathlib import Path

import pytest

from shared.domain.errors import InvalidToolSource
from shared.typescript import as_javascript, program_module, tool_module
from tests.kit.node import need_node

WHOLE = """
import fs from "node:fs";
import type { Stats } from "node:fs";
import { type Dirent, existsSync } from "node:fs";
interface Options<T> { city: string; next?: Options<T> }
type Unit = "C" | "F";
declare const injected: string;
declare module "x" { const y: number }
abstract class Shape { abstract area(): number; protected constructor(readonly_: string) {} }
class Square<T extends Unit> extends Shape implements Iterable<T> {
  private readonly side: number = 2;
  declare hidden: string;
  static count?: number;
  named!: string
  ["computed"] = 3;
  [key: string]: any;
  constructor() { super("x"); }
  override area(): number { return this.side ** 2; }
  maybe?(): void;
  *[Symbol.iterator](): Iterator<T> {}
}
function over(a: string): string;
function over(a: number): number;
function over(this: void, a: any): any { return a; }
function isText(value: unknown): value is string { return typeof value === "string"; }
function must(value: unknown): asserts value { if (!value) throw new Error(); }
const identity = <T,>(value: T): T => value;
const split = (city: string): {
  city: string;
} => ({ city });
const angle = <string>identity<any>("a");
const maybe = injectedOr(undefined)!;
function injectedOr<T>(value?: T): T { return value as unknown as T; }
const table = { a: 1 } as const satisfies Record<string, number>;
let later: string
[1, 2].forEach((n: number): void => { later = `${n as number}`; })
const cut = table as object
(function () {})();
try { must(1) } catch (error: unknown) { }
for (const part of [1] as number[]) over(part);
const list = new Map<string, Array<number>>();
let less = table.a < 2, more = table.a > (1);
export function weather(city: string, days: number = 1, unit?: Unit, ...rest: string[]): string {
  return `${city} ${days} ${unit} ${identity("größe ☃")} ${split("x").city} ${new Square().area()} ${rest.length}`;
}
export type { Unit };
"""


def ran(source: str) -> str:
    node = need_node()
    made = subprocess.run(
        [node.executable, "--input-type=module", "-e", source], capture_output=True, text=True, check=False
    )
    return made.stdout + made.stderr


def test_everything_that_is_only_a_type_is_left_out_and_the_rest_stands_where_it_stood() -> None:
    made = as_javascript(WHOLE)
    assert made.count("\n") == WHOLE.count("\n")
    assert "\nexport function weather(city        , days         = 1, unit       , ...rest          )         {" in made
    assert ran(made + '\nconsole.log(weather("Rome"));') == "Rome 1 undefined größe ☃ x 4 0\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("const a = 1;\nenum Colour { Red }", "Line 2: enums make code"),
        ("export const enum Colour { Red }", "Line 1: enums make code"),
        ("namespace A { export const b = 1 }", "Line 1: namespaces make code"),
        ("class A { constructor(private b: string) {} }", "Line 1: parameter properties make code"),
        ("class A { constructor(readonly b: string) {} }", "Line 1: parameter properties make code"),
        ("@sealed class A {}", "Line 1: decorators make code"),
        ("import fs = require('fs')", "Line 1: use `import x from`"),
        ("const a = 1;\nlet b = ;", "Line 2 cannot be read as TypeScript"),
        ("x" * 200_000, "131072 are allowed"),
        ("half '\ud800'", "surrogate"),
    ],
)
def test_what_would_need_code_of_its_own_is_refused_by_name(source: str, said: str) -> None:
    with pytest.raises(InvalidToolSource) as refused:
        as_javascript(source)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "(" * 60_000, "[" * 60_000 + "]" * 60_000, "a<" * 40_000, "`${" * 40_000, "{a:" * 40_000,
        "type X=" + "A<" * 40_000, "type X=" + "A|" * 60_000 + "A", "\0" * 100_000, "<a>" * 40_000,
        "let x = " + "!" * 100_000 + "1",
    ],
)  # fmt: skip
def test_a_source_of_any_depth_is_read_or_refused_without_a_crash(source: str) -> None:
    try:
        as_javascript(source)
    except InvalidToolSource as refusal:
        assert str(refusal)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("const a: number = 2;\n(a as any) * 3", "6"),
        ("import os from 'node:os'; typeof os.EOL;", "string"),
        ("1; // said", "1"),
        ("const f = (n: number): number => n < 2 ? 1 : n * f(n - 1)\nawait f(5)", "120"),
        ("const a = 1", "undefined"),
        ("", "undefined"),
    ],
)
def test_the_value_of_a_program_is_that_of_its_last_expression(code: str, printed: str, tmp_path: Path) -> None:
    module = tmp_path / "program.mjs"
    module.write_text(program_module(code, is_typescript=True).source)
    assert ran(f"console.log((await import({str(module)!r})).default);").strip() == printed


def test_javascript_that_cannot_be_read_is_left_to_node() -> None:
    assert program_module("let a = ;", is_typescript=False).source == "let a = ;"


def test_a_function_that_is_not_exported_is_exported_and_its_parameters_keep_their_order() -> None:
    module = tool_module("function tool(this: void, b: string, a?: number, ...rest: string[]) {}", "tool")
    assert module.parameters == ("b", "a")
    assert module.source.endswith("\nexport { tool };")
    assert "export {" not in tool_module("export const tool = async (a: string) => a", "tool").source
