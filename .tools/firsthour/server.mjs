// The real server, on ports of its own and with data that is thrown away.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export class Server {
  constructor(binary) {
    this.binary = binary;
    this.data = mkdtempSync(join(tmpdir(), "parley-firsthour-"));
    this.copy = `${this.data}-copy`;
    this.lines = []; // what it has printed
  }

  // start starts it, after a kill where it was before, and waits until it listens.
  async start() {
    this.log = "";
    this.operators = undefined; // where they are served
    const free = "127.0.0.1:0";
    const args = ["--listen", this.address ?? free, "--kafka-listen", free, "--registry-listen", free, "--ops-listen", free, "--data-dir", this.data];
    this.process = spawn(this.binary, args, { stdio: ["ignore", "pipe", "pipe"] });
    this.process.stderr.on("data", (b) => {
      this.log = (this.log + b).slice(-4000);
      this.operators ??= this.log.match(/ ops=(\S+)/)?.[1];
    });
    const output = createInterface({ input: this.process.stdout });
    output.on("line", (line) => this.lines.push(line));
    const ended = once(this.process, "exit").then(() => Promise.reject(new Error(`the server did not start: ${this.log}`)));
    ended.catch(() => {}); // once it listens, an end is no failure of the start
    const listens = new Promise((done) => output.on("line", (line) => {
      const found = line.match(/listening on http:\/\/([^,\s]+)/);
      if (found) done(found[1]);
    }));
    this.address = await Promise.race([listens, ended]);
  }

  async kill() {
    const gone = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await gone;
  }

  // keep copies the data of a server that is down, and putBack returns it to them.
  keep() {
    cpSync(this.data, this.copy, { recursive: true, preserveTimestamps: true });
  }

  putBack() {
    rmSync(this.data, { recursive: true });
    renameSync(this.copy, this.data);
  }

  token(user) {
    return execFileSync(this.binary, ["--data-dir", this.data, "token", user], { encoding: "utf8" }).trim();
  }

  end() {
    this.process?.kill("SIGKILL");
    for (const dir of [this.data, this.copy]) rmSync(dir, { recursive: true, force: true });
  }
}

// until waits for a condition; what says what is there instead.
export async function until(what, holds, seconds = 60) {
  for (const deadline = Date.now() + seconds * 1000; !holds(); await new Promise((done) => setTimeout(done, 50))) {
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${what()}`);
  }
}
