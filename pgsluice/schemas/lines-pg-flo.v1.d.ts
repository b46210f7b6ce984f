// One line of pgsluice's format pg-flo. Made of the declarations in worker/sinks/lines/schemas.
// JSON.parse rounds numbers beyond 2^53 and decimals: take a parser that keeps their digits where they count.

export type Value = null | boolean | number | string | Value[] | { [name: string]: Value };

/** The key of a row; the type is empty if there is none. */
export interface PgFloKey {
  Type: "PRIMARY KEY" | "UNIQUE" | "FULL" | "";
  Columns: string[];
}

/** A row that a snapshot copied. */
export interface PgFloCopied {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** The snapshot's LSN */
  LSN: string | null;
  EmittedAt: null;
  Position: null;
  Type: "INSERT";
  NewTuple: { [name: string]: Value };
}

/** A row that was inserted. */
export interface PgFloInsert {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** A place in the source's write-ahead log */
  LSN: string;
  /** When the transaction was committed, in UTC */
  EmittedAt: string;
  /** Commit LSN of the transaction, and the change's number in it */
  Position: string;
  Type: "INSERT";
  NewTuple: { [name: string]: Value };
}

/** A row that was updated: OldTuple is the old row, as far as it was sent. */
export interface PgFloUpdate {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** A place in the source's write-ahead log */
  LSN: string;
  /** When the transaction was committed, in UTC */
  EmittedAt: string;
  /** Commit LSN of the transaction, and the change's number in it */
  Position: string;
  Type: "UPDATE";
  NewTuple: { [name: string]: Value };
  OldTuple?: { [name: string]: Value };
  /** Columns that the update did not touch and PostgreSQL did not send */
  Unchanged?: string[];
}

/** A row that was deleted, as far as it was sent. */
export interface PgFloDelete {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** A place in the source's write-ahead log */
  LSN: string;
  /** When the transaction was committed, in UTC */
  EmittedAt: string;
  /** Commit LSN of the transaction, and the change's number in it */
  Position: string;
  Type: "DELETE";
  OldTuple: { [name: string]: Value };
}

/** A table that was emptied. */
export interface PgFloTruncate {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** A place in the source's write-ahead log */
  LSN: string;
  /** When the transaction was committed, in UTC */
  EmittedAt: string;
  /** Commit LSN of the transaction, and the change's number in it */
  Position: string;
  Type: "TRUNCATE";
}

/** The table is copied again: what was copied of it before no longer counts. */
export interface PgFloRestart {
  Schema: string;
  Table: string;
  ReplicationKey: PgFloKey;
  /** The snapshot's LSN */
  LSN: string | null;
  EmittedAt: null;
  Position: null;
  Type: "RESTART";
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

/** A table or a type was altered; Schema and Table are null if the source could not determine it. */
export interface PgFloDefinition {
  /** A place in the source's write-ahead log */
  LSN: string;
  /** When the transaction was committed, in UTC */
  EmittedAt: string;
  /** Commit LSN of the transaction, and the change's number in it */
  Position: string;
  Type: "DDL";
  Schema: string | null;
  Table: string | null;
  NewTuple: TableDefinitionForm | TypeDefinitionForm | RewriteForm | GoneForm | UnknownDefinitionForm;
}

export type PgFloLine = PgFloCopied | PgFloInsert | PgFloUpdate | PgFloDelete | PgFloTruncate | PgFloRestart | PgFloDefinition;
