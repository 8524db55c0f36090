// graphile-worker: a job writes the row and adds the next job in one transaction; its own queue, nothing else.
//
//   node graphile_worker.js DATABASE CONCURRENCY
//
// Standard input and output carry the lines of `benchmarks/job.py`: ready, go, started, stop, usage.
"use strict";
const fs = require("fs");
const readline = require("readline");
const { Logger, run } = require("graphile-worker");
const { Pool } = require("pg");

const [database, concurrency] = [process.argv[2], Number(process.argv[3])];
const SPARE_CONNECTIONS = 4; // what the worker itself needs beside its jobs
const POLL_MILLISECONDS = 200;
const LOCAL_QUEUE = Math.max(500, concurrency * 5); // jobs fetched at once: far faster than its default, one at a time
const INSERT = "insert into baseline_order(order_id) values($1)";
const ADD_JOB = "select graphile_worker.add_job('placed', json_build_object('order_id', $1::text))";

async function place({ order_id }, { withPgClient }) {
  await withPgClient(async (client) => {
    await client.query("begin");
    try {
      await client.query(INSERT, [order_id]);
      await client.query(ADD_JOB, [order_id]);
      await client.query("commit");
    } catch (error) {
      await client.query("rollback");
      throw error;
    }
  });
}

function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

// The most memory this program ever had, in bytes; `maxRSS` would remember the interpreter that it replaced.
function peakMemory() {
  const found = fs.existsSync("/proc/self/status") && /^VmHWM:\s+(\d+)/m.exec(fs.readFileSync("/proc/self/status", "utf8"));
  return (found ? Number(found[1]) : process.resourceUsage().maxRSS) * 1024;
}

async function connected(pool) {
  const clients = await Promise.all(Array.from({ length: concurrency }, () => pool.connect()));
  clients.forEach((client) => client.release());
}

async function main() {
  const pool = new Pool({ connectionString: database, max: concurrency + SPARE_CONNECTIONS });
  pool.on("error", (error) => console.error(error));
  await connected(pool);
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log("ready");
  if ((await lines.next()).value !== "go") return;
  const before = cpuSeconds();
  console.log("started");
  const runner = await run({
    pgPool: pool,
    concurrency,
    noHandleSignals: true,
    pollInterval: POLL_MILLISECONDS,
    preset: { worker: { localQueue: { size: LOCAL_QUEUE }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
    logger: new Logger(() => () => {}),
    taskList: { place },
  });
  await lines.next(); // "stop", or the end of a parent that died
  const usage = { cpu: cpuSeconds() - before, peak: peakMemory() };
  await runner.stop();
  await pool.end();
  console.log(JSON.stringify(usage));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
