// The exports of html.js, with the types of their packages. Only the type checker reads this file.

import type { VNode } from "preact";

export { render, Component, Fragment } from "preact";
export type { ComponentChildren, VNode } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export {
  batch,
  computed,
  effect,
  signal,
  untracked,
  useComputed,
  useSignal,
  useSignalEffect,
} from "@preact/signals";
export type { ReadonlySignal, Signal } from "@preact/signals";

export function html(strings: TemplateStringsArray, ...values: unknown[]): VNode<any>;
