/** How calls are sent and cancelled. */

import { ask } from "./api.js";

/** Return the action of a call, as it is sent. @param {Call} call */
export const actionOf = (call) => (call.own ? { ...call.arguments, type: call.name }
	: { type: "call_tool", tool_name: call.name, arguments: call.arguments });

/** Make a call in the name of `call.by`, or of the `holder` of the session. @type {CallMaker} */
export const callBy = (id, call, holder) => ask(`sessions/${id}/calls`, { method: "POST", body: { by: call.by, holder, action: actionOf(call) } });

/** Cancel the call that runs; false if none does. @param {string} id @returns {Promise<boolean>} */
export const cancelCall = async (id) => (await ask(`sessions/${id}/cancel`, { method: "POST", body: {} })).cancelled;
