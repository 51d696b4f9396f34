/** Run a function once: one call over the claims API of a Semel server. */

export type * as api from "./api.js";
export { Client, Outcome, Won, defaultClient, once } from "./client.js";
export type { ClientOptions, CompleteTerms, Mode, OnceOptions, Terms } from "./client.js";
export * from "./errors.js";
