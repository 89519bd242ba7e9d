// Who decides, for the record of approvals and cancels: a name that the person gives, kept for this tab only.

import { effect, signal } from "../html.js";

const KEPT_AS = "holdfast.actor";

/** The name as it was typed. */
export const actor = signal(sessionStorage.getItem(KEPT_AS) ?? "");

effect(() => sessionStorage.setItem(KEPT_AS, actor.value));

/** The name that is sent: that of the console itself while the person has given none. */
export function actorName() {
  return actor.value.trim().slice(0, 200) || "console";
}
