// One line of pgsluice's format json with row-layout flat. Made of the declarations in worker/sinks/lines/schemas.
// JSON.parse rounds numbers beyond 2^53 and decimals: take a parser that keeps their digits where they count.

export type Value = null | boolean | number | string | Value[] | { [name: string]: Value };

/** A row that a snapshot copied. */
export interface FlatRead {
  _schema: string;
  _table: string;
  _operation: "READ";
  /** The snapshot that the row was read under */
  _snapshot: string;
  /** The columns of the row. */
  [column: string]: Value | undefined;
}

/** A row that was inserted. */
export interface FlatInsert {
  _schema: string;
  _table: string;
  /** Commit LSN of the transaction, and the change's number in it */
  _position: string;
  /** The transaction's number at the source */
  _xid: number;
  /** When the transaction was committed, in UTC */
  _committed_at: string;
  _operation: "INSERT";
  /** The columns of the row. */
  [column: string]: Value | undefined;
}

/** A row that was updated: _before is the old row, as far as it was sent. */
export interface FlatUpdate {
  _schema: string;
  _table: string;
  /** Commit LSN of the transaction, and the change's number in it */
  _position: string;
  /** The transaction's number at the source */
  _xid: number;
  /** When the transaction was committed, in UTC */
  _committed_at: string;
  _operation: "UPDATE";
  _before?: { [name: string]: Value };
  /** Columns that the update did not touch and PostgreSQL did not send */
  _unchanged?: string[];
  /** The columns of the row. */
  [column: string]: Value | undefined;
}

/** A row that was deleted, as far as it was sent. */
export interface FlatDelete {
  _schema: string;
  _table: string;
  /** Commit LSN of the transaction, and the change's number in it */
  _position: string;
  /** The transaction's number at the source */
  _xid: number;
  /** When the transaction was committed, in UTC */
  _committed_at: string;
  _operation: "DELETE";
  /** The columns of the row. */
  [column: string]: Value | undefined;
}

/** A table that was emptied. */
export interface FlatTruncate {
  _schema: string;
  _table: string;
  /** Commit LSN of the transaction, and the change's number in it */
  _position: string;
  /** The transaction's number at the source */
  _xid: number;
  /** When the transaction was committed, in UTC */
  _committed_at: string;
  _operation: "TRUNCATE";
}

/** The table is copied again: READ lines of it before this one no longer count. */
export interface FlatRestart {
  _schema: string;
  _table: string;
  _operation: "RESTART";
  /** The snapshot that the row was read under */
  _snapshot: string;
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
export interface TableDefinitionForm {
  kind: "table" | "published";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  columns: DefinedColumnForm[];
  previous: PreviousTable | PreviousType | null;
}

/** The type is like this from here on: labels of an enum, attributes of a composite type. */
export interface TypeDefinitionForm {
  kind: "type";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  labels: string[];
  attributes?: DefinedAttributeForm[];
  previous: PreviousTable | PreviousType | null;
}

/** A command rewrote values, without a line for each; reason is what pg_event_trigger_table_rewrite_reason returned, a bit mask. */
export interface RewriteForm {
  kind: "rewrite";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  reason: number;
  previous: PreviousTable | PreviousType | null;
}

/** The table was dropped; "unpublished": its rows no longer come. */
export interface GoneForm {
  kind: "gone" | "unpublished";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  previous: PreviousTable | PreviousType | null;
}

/** The source could not determine the command's effect. */
export interface UnknownDefinitionForm {
  kind: "unknown";
  /** The command's tag, like ALTER TABLE */
  tag: string;
  sqlstate: string;
}

/** A table or a type was altered; _schema and _table are null if the source could not determine it. */
export interface FlatDefinition {
  /** Commit LSN of the transaction, and the change's number in it */
  _position: string;
  /** The transaction's number at the source */
  _xid: number;
  /** When the transaction was committed, in UTC */
  _committed_at: string;
  _operation: "DDL";
  _schema: string | null;
  _table: string | null;
  _definition: TableDefinitionForm | TypeDefinitionForm | RewriteForm | GoneForm | UnknownDefinitionForm;
}

export type FlatLine = FlatRead | FlatInsert | FlatUpdate | FlatDelete | FlatTruncate | FlatRestart | FlatDefinition;
