/** Base of all errors of this package. */
export class SemelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The key was used with another payload. */
export class ConflictError extends SemelError {}

/** Another caller holds the key, and the wait is over. */
export class InFlightError extends SemelError {
  /** Milliseconds after which a retry makes sense. */
  readonly retryAfter: number;

  constructor(message: string, retryAfter: number) {
    super(message);
    this.retryAfter = retryAfter;
  }
}

/** The effect may have happened: its worker was lost. It does not run again until the key is settled. */
export class InDoubtError extends SemelError {
  /** For `semel keys settle`. */
  readonly keyId: string;

  constructor(message: string, keyId: string) {
    super(message);
    this.keyId = keyId;
  }
}

/** The effect happened, and its retention is over. */
export class ExpiredError extends SemelError {}

/** The effect happened, and its outcome was not kept: it was too large, or a stream. */
export class NotKeptError extends SemelError {}

/** The claim belongs to another worker now. `outcome` is what stands, if there is one for the same payload. */
export class LostError extends SemelError {
  readonly document: Record<string, unknown>;

  constructor(message: string, document: Record<string, unknown> = {}) {
    super(message);
    this.document = document;
  }
}

/** The effect happened, and its outcome could not be stored. */
export class NotStoredError extends SemelError {
  /** What the function returned. */
  readonly result: unknown;

  constructor(message: string, result: unknown, options?: ErrorOptions) {
    super(message, options);
    this.result = result;
  }
}

/** The server refused the request: a wrong token, a wrong setting. */
export class RequestError extends SemelError {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, detail: string) {
    super(`${detail} (${status}, ${code})`);
    this.status = status;
    this.code = code;
  }
}

/**
 * The server or its store gave no answer in time. `once` throws it before the function starts; afterwards it throws
 * `NotStoredError`.
 */
export class UnavailableError extends SemelError {}

/** Throw it in a function that is run once if its effect did not happen: the key is free again. */
export class NothingHappened extends Error {
  constructor(message?: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "NothingHappened";
  }
}
