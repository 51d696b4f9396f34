/** Renews all claims of a client in one call, and gives back claims that nobody wants any more. */

import type { BatchResults } from "./api.js";
import type { Attempt, Won } from "./client.js";
import { type Wire, sleep } from "./wire.js";

const MOST_RENEWALS = 1_000;
const GIVE_BACK_EVERY = 300;

export class Heartbeat {
  readonly #wire: Wire;
  readonly #claims = new Set<Won>();
  #timer: NodeJS.Timeout | undefined;
  #wakes = Infinity;

  constructor(wire: Wire) {
    this.#wire = wire;
  }

  add(won: Won): void {
    this.#claims.add(won);
    this.#plan(won.due);
  }

  remove(won: Won): void {
    this.#claims.delete(won);
  }

  #plan(due: number): void {
    if (due >= this.#wakes) return;
    clearTimeout(this.#timer);
    this.#wakes = due;
    this.#timer = setTimeout(() => void this.#beat(), Math.max(10, due - performance.now()));
    // A claim does not keep the process alive; its effect does.
    this.#timer.unref();
  }

  async #beat(): Promise<void> {
    this.#wakes = Infinity;
    const now = performance.now();
    const due = [...this.#claims].filter((won) => won.due <= now);
    for (let start = 0; start < due.length; start += MOST_RENEWALS) {
      await this.#renew(due.slice(start, start + MOST_RENEWALS));
    }
    for (const won of this.#claims) this.#plan(won.due);
  }

  async #renew(claims: Won[]): Promise<void> {
    const now = performance.now();
    // Short: a server that does not answer now can be asked again before the lease ends.
    const within = Math.max(100, Math.min(...claims.map((won) => won.lease)) / 4);
    let results: BatchResults["results"] | undefined;
    try {
      const body = JSON.stringify({ claim_ids: claims.map((won) => won.claimId) });
      const answer = await this.#wire.send("/v1/claims/renew", body, within);
      const found = (JSON.parse(answer.text) as Partial<BatchResults> | null)?.results;
      if (Array.isArray(found)) results = found;
    } catch {
      // Asked again soon.
    }
    claims.forEach((won, place) => {
      const result = results?.[place] ?? undefined;
      const problem = result !== undefined && "problem" in result ? result.problem : undefined;
      if (problem !== undefined && !problem.retryable) {
        this.remove(won);
        won.lose();
      } else {
        won.due = now + won.lease / (result === undefined || problem !== undefined ? 12 : 3);
      }
    });
  }

  /** Releases, in the background, a claim whose answer did not arrive. */
  async giveBack(attempt: Attempt): Promise<void> {
    const retryFor = attempt.lease;
    try {
      for (;;) {
        const claimed = await this.#wire.post("/v1/claims", "/v1/claims", attempt.request(0), { retryFor });
        if (claimed.status === "won") {
          const release = `/v1/claims/${claimed.claim_id}/release`;
          await this.#wire.post("/v1/claims/{claim_id}/release", release, "", { retryFor });
        }
        // Another caller holds the key: a request of ours may still wait for it behind a proxy.
        if (claimed.status !== "busy" || performance.now() > attempt.waitsUntil + GIVE_BACK_EVERY) return;
        await sleep(GIVE_BACK_EVERY);
      }
    } catch {
      // Released before, or the end of the lease decides.
    }
  }
}
