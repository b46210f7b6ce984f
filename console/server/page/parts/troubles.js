// What is not as it should be with a group, the worst first: each a sentence, and what a reader can do.

import { clock, count, plural } from "./format.js";

const ORDER = { error: 0, warning: 1 };

export function troublesOf({ status, problem, looked_at: time }) {
  const found = [];
  const note = (severity, subject, fact, remedy = "") => found.push({ severity, subject, fact, remedy });
  if (problem) {
    note("error", "server", `${time ? `This state is from ${clock(time)} and can be outdated` : "The state is not known"}: ${problem}`);
  }
  if (!status) {
    return found;
  }
  if (status.halt) {
    note("error", "group", status.halt.fact, status.halt.remedy);
  }
  if (status.slot?.lost) {
    note("error", "source", `The replication slot is lost: ${status.slot.lost}`, "drop the group, then start it again with an initial snapshot");
  }
  status.shortages.forEach(({ alert, subject, fact, remedy }) => note(alert === "slot-at-risk" ? "error" : "warning", subject, fact, remedy));
  status.units.forEach((unit) => {
    if (["failed", "unknown", "failing"].includes(unit.state)) {
      note(unit.state === "failed" ? "error" : "warning", unit.unit, unit.fact || `The process is ${unit.state}`, unit.remedy);
    }
  });
  status.tables.filter((table) => table.error).forEach((table) => note("error", table.table, table.error, table.remedy));
  status.membership?.missing.forEach((each) => {
    note("error", `${each.schema}.${each.table}`, `Changes are missing since ${each.lsn}: ${each.reason}`, "resync the table");
  });
  status.workers.forEach((worker) => {
    const subject = `worker.${worker.name}`;
    if (worker.dead_letters) {
      note("warning", subject, `${plural(worker.dead_letters, "change is a dead letter", "changes are dead letters")}`);
    }
    const missed = worker.missed.filter((each) => each.diverged);
    missed.forEach((each) => {
      note("warning", subject, `${count(each.changes)} changes of ${each.table} found no row in the target`, each.remedy);
    });
  });
  return found.sort((one, other) => ORDER[one.severity] - ORDER[other.severity]);
}
