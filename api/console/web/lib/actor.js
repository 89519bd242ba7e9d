// The name for the record of approvals and cancels: the person types it, and only this tab keeps it.

import { effect, signal } from "../html.js";

const KEPT_AS = "holdfast.actor";

/** The typed name. */
export const actor = signal(sessionStorage.getItem(KEPT_AS) ?? "");

effect(() => sessionStorage.setItem(KEPT_AS, actor.value));

/** The name that is sent: the console's own name until the person gives one. */
export function actorName() {
  return actor.value.trim().slice(0, 200) || "console";
}
