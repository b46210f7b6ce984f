// One line of pgsluice's format debezium. Made of the declarations in worker/sinks/lines/schemas.
// JSON.parse rounds numbers beyond 2^53 and decimals: take a parser that keeps their digits where they count.

export type Value = null | boolean | number | string | Value[] | { [name: string]: Value };

/** Origin of the change; times are 0 for a copied row. */
export interface DebeziumOrigin {
  version: string;
  connector: "postgresql";
  name: string;
  ts_ms: number;
  snapshot: "true" | "false";
  db: string;
  /** Commit LSN and the change's number, by which all changes are sorted */
  sequence: string;
  ts_us: number;
  ts_ns: number;
  schema: string;
  table: string;
  txId: number | null;
  lsn: number | null;
  xmin: null;
}

/** A row that a snapshot copied. */
export interface DebeziumRead {
  source: DebeziumOrigin;
  transaction: null;
  before: null;
  after: { [name: string]: Value };
  op: "r";
  ts_ms: null;
  ts_us: null;
  ts_ns: null;
}

/** A row that was inserted, or a row under its new key when an update changed the key. */
export interface DebeziumCreate {
  source: DebeziumOrigin;
  transaction: null;
  ts_ms: number;
  ts_us: number;
  ts_ns: number;
  before: null;
  after: { [name: string]: Value };
  op: "c";
}

/** A row that was updated: before is the old row, as far as it was sent. */
export interface DebeziumUpdate {
  source: DebeziumOrigin;
  transaction: null;
  ts_ms: number;
  ts_us: number;
  ts_ns: number;
  before: { [name: string]: Value } | null;
  after: { [name: string]: Value };
  op: "u";
}

/** A row that was deleted, or a row under its old key when an update changed the key. */
export interface DebeziumDelete {
  source: DebeziumOrigin;
  transaction: null;
  ts_ms: number;
  ts_us: number;
  ts_ns: number;
  before: { [name: string]: Value };
  after: null;
  op: "d";
}

/** A table that was emptied, or, without times, is copied again. */
export interface DebeziumTruncate {
  source: DebeziumOrigin;
  transaction: null;
  before: null;
  after: null;
  op: "t";
  ts_ms: number | null;
  ts_us: number | null;
  ts_ns: number | null;
}

export type DebeziumLine = DebeziumRead | DebeziumCreate | DebeziumUpdate | DebeziumDelete | DebeziumTruncate;
