// What html.js gives, in the types of the packages that it takes it from. The type checker alone reads this file.

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
