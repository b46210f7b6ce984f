// One line of pgsluice's format json, and one event of a webhook subscription. Made of the declarations in worker/sinks/lines/schemas.
// JSON.parse rounds numbers beyond 2^53 and decimals: take a parser that keeps their digits where they count.

export type Value = null | boolean | number | string | Value[] | { [name: string]: Value };

/** A row that a snapshot copied. */
export interface JsonRead {
  schema: string;
  table: string;
  /** With column-ids: the number of each column, null where it is not known */
  columns?: { [name: string]: number | null };
  /** The columns of the row's key, null when the table has none */
  key: { [name: string]: Value } | null;
  position: null;
  operation: "READ";
  before: null;
  after: { [name: string]: Value };
  /** The snapshot that the row was read under */
  snapshot: string;
}

/** A row that was inserted. */
export interface JsonInsert {
  schema: string;
  table: string;
  /** With column-ids: the number of each column, null where it is not known */
  columns?: { [name: string]: number | null };
  /** The columns of the row's key, null when the table has none */
  key: { [name: string]: Value } | null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "INSERT";
  before: null;
  after: { [name: string]: Value };
}

/** A row that was updated: before is the old row, as far as the replica identity sends it. */
export interface JsonUpdate {
  schema: string;
  table: string;
  /** With column-ids: the number of each column, null where it is not known */
  columns?: { [name: string]: number | null };
  /** The columns of the row's key, null when the table has none */
  key: { [name: string]: Value } | null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "UPDATE";
  before: { [name: string]: Value } | null;
  after: { [name: string]: Value };
  /** Columns that the update did not touch and PostgreSQL did not send */
  unchanged?: string[];
}

/** A row that was deleted, as far as the replica identity sends it. */
export interface JsonDelete {
  schema: string;
  table: string;
  /** With column-ids: the number of each column, null where it is not known */
  columns?: { [name: string]: number | null };
  /** The columns of the row's key, null when the table has none */
  key: { [name: string]: Value } | null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DELETE";
  before: { [name: string]: Value };
  after: null;
}

/** A table that was emptied. */
export interface JsonTruncate {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "TRUNCATE";
  cascade?: true;
  restart_identity?: true;
}

/** The table is copied again: READ lines of it before this one no longer count. */
export interface JsonRestart {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  position: null;
  operation: "RESTART";
  /** The snapshot that the row was read under */
  snapshot: string;
}

/** A column that rows carry; its number stays when it is renamed. */
export interface DefinedColumnForm {
  number: number;
  name: string;
  type: string;
  not_null: boolean;
  primary_key_position: number | null;
}

/** A table as it was before. */
export interface PreviousTable {
  schema: string;
  name: string;
  columns: DefinedColumnForm[];
}

/** An attribute of a composite type. */
export interface DefinedAttributeForm {
  number: number;
  name: string;
  type: string;
}

/** A type as it was before. */
export interface PreviousType {
  schema: string;
  name: string;
  labels: string[];
  attributes?: DefinedAttributeForm[];
}

/** The table is like this from here on; "published": its rows come from here on. */
export interface JsonTableDefinition {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DDL";
  kind: "table" | "published";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  columns: DefinedColumnForm[];
  previous: PreviousTable | PreviousType | null;
}

/** The type of that name is like this from here on: labels of an enum, attributes of a composite type. */
export interface JsonTypeDefinition {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DDL";
  kind: "type";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  labels: string[];
  attributes?: DefinedAttributeForm[];
  previous: PreviousTable | PreviousType | null;
}

/** A command rewrote values, without a line for each; reason is what pg_event_trigger_table_rewrite_reason returned, a bit mask. */
export interface JsonRewrite {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DDL";
  kind: "rewrite";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  reason: number;
  previous: PreviousTable | PreviousType | null;
}

/** The table was dropped; "unpublished": its rows no longer come. */
export interface JsonGone {
  schema: string;
  table: string;
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DDL";
  kind: "gone" | "unpublished";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  previous: PreviousTable | PreviousType | null;
}

/** The source could not determine the command's effect. */
export interface JsonUnknownDefinition {
  key: null;
  before: null;
  after: null;
  /** Commit LSN of the transaction, and the change's number in it */
  position: string;
  /** The transaction's number at the source */
  xid: number;
  /** When the transaction was committed, in UTC */
  committed_at: string;
  operation: "DDL";
  kind: "unknown";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  sqlstate: string;
  schema: null;
  table: null;
}

/** Begin or commit of a transaction, with transactions. */
export interface JsonBorder {
  operation: "BEGIN" | "COMMIT";
  /** The transaction's number at the source */
  xid: number;
  /** A place in the source's write-ahead log */
  commit_lsn: string;
  /** When the transaction was committed, in UTC */
  committed_at: string;
}

export type JsonLine = JsonRead | JsonInsert | JsonUpdate | JsonDelete | JsonTruncate | JsonRestart | JsonTableDefinition | JsonTypeDefinition | JsonRewrite | JsonGone | JsonUnknownDefinition | JsonBorder;
