// What the server answers, and how it is asked. Money is USD per hour, times are RFC 3339, shares are 0 to 1.

export interface NodeRow {
  name: string;
  pool: string;
  type: string;
  zone: string;
  capacityType: string;
  state: string;
  why: string;
  heldBy: string[];
  price: number | null;
  cpu: number;
  memory: number;
  cpuMillis: number;
  pods: number;
  ready: boolean;
  kept: boolean;
  /** Name of its NodeClaim; empty without one. */
  claim: string;
}
export interface Pending {
  pod: string;
  since: string | null;
  reason: string;
  cpuMillis: number;
  memoryMiB: number;
}
export interface Decision {
  id: string;
  at: string;
  kind: string;
  text: string;
  reason: string;
  nodes: string[];
  replaces: string[];
  replacedBy: string[];
  saving: number | null;
  /** Pods that had to move; null where no history counted them. */
  restarts: number | null;
}
export interface Budget {
  reason: string;
  allowed: number | null;
  remaining: number | null;
  opensAt: string | null;
}
export interface Pool {
  name: string;
  nodes: number;
  price: number;
  cpu: number;
  memory: number;
  drifted: number;
  freeze: string;
  ready: boolean;
  budgets: Budget[];
}
export interface SpendRow {
  name: string;
  price: number;
  count: number;
}
export interface View {
  now: string;
  title: string;
  fault: string;
  /** Why decisions of a history are missing or old; empty where they are not. */
  historyFault: string;
  price: number;
  managedPrice: number;
  bound: number | null;
  unpricedNodes: number;
  fill: { cpu: number; memory: number };
  pods: { total: number; pending: number; running: number; bound: number };
  nodes: NodeRow[];
  pending: Pending[];
  decisions: Decision[];
  pools: Pool[];
  spending: Record<string, SpendRow[]>;
}
export interface Session {
  user: string;
  signIn: "secret-link" | "token";
  /** Why nothing can be done from here; empty where it can. */
  inaction: string;
  hasHistory: boolean;
  /** Why the history cannot be read from this replica; empty where it can. */
  historyFault: string;
  hidden: string[];
}
/** What is wrong with the view, empty where all is well; `since` is the time of the latest view. */
export interface FeedFault {
  fault: string;
  since: string;
}
export interface NodeFacts {
  name: string;
  pool: string;
  type: string;
  zone: string;
  capacityType: string;
  price: number | null;
  pods: number;
  cpu: number;
}
export interface RecordedDecision {
  id: string;
  at: string;
  kind: string;
  reason: string;
  text: string;
  outcome: string;
  cause: string;
  endedAt: string | null;
  pods: number;
  saving: number | null;
  before: NodeFacts[];
  after: NodeFacts[];
}
export interface Series {
  times: number[];
  price: number[];
  managedPrice: number[];
  bound: (number | null)[];
  classic: (number | null)[];
  nodes: number[];
  pending: number[];
}
export interface Interruption {
  at: string;
  reason: string;
  node: string;
  message: string;
}
export interface HistoryAnswer {
  samples: Series;
  spent: Record<string, { name: string; usd: number }[]>;
  decisions: RecordedDecision[];
  interruptions: Interruption[];
}
export interface LedgerPart {
  by: string;
  name: string;
  spent: number;
}
/** Money is USD; the last three of a day are 0 where the prices to compare with are not known. */
export interface Ledger {
  from: string;
  until: string;
  knownHours: number;
  spent: number;
  savedByDecisions: number;
  savedByPacking: number;
  days: { day: string; knownHours: number; spent: number; nodePools: number; lowerBound: number; classicPacking: number }[];
  parts: LedgerPart[];
  unused: LedgerPart[];
  decisions: {
    id: string;
    at: string;
    reason: string;
    text: string;
    outcome: string;
    pods: number;
    estimatedSavingPerHour: number | null;
    realizedSavingPerHour: number | null;
    saved: number;
  }[];
}
export interface BudgetSpan {
  pool: string;
  reason: string;
  begins: string;
  ends: string;
  allowed: number | null;
}
export interface NewNode {
  name: string;
  pool: string;
  type: string;
  zone: string;
  capacityType: string;
  price: number;
  pods: number;
}
export interface Move {
  pod: string;
  from: string;
  to: string;
}
export interface WhatIfAnswer {
  priceBefore: number;
  priceAfter: number;
  difference: number;
  removed: string[];
  bought: NewNode[];
  moves: Move[];
  moved: number;
  stranded: { pod: string; reason: string }[];
  waiting: number;
  /** Pods that may not be evicted, cut to 500; `held` counts all. */
  holding: { pod: string; node: string; reason: string }[];
  held: number;
}
export interface ActionRequest {
  action: "freeze" | "thaw" | "wake" | "keep-node" | "release-node" | "drain-node";
  target: string;
  reason?: string;
  hours?: number;
}

/** An answer other than 2xx, with the sentence that the server gave. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const TOKEN_KEY = "karpenter-console-token";

/** The token of this browser tab; it is forgotten when the tab closes. */
export const signedIn = {
  get token(): string {
    return sessionStorage.getItem(TOKEN_KEY) ?? "";
  },
  set token(token: string) {
    if (token) sessionStorage.setItem(TOKEN_KEY, token);
    else sessionStorage.removeItem(TOKEN_KEY);
  },
};

function headers(): Record<string, string> {
  return signedIn.token ? { Authorization: `Bearer ${signedIn.token}` } : {};
}

async function answered(path: string, init: RequestInit = {}): Promise<Response> {
  const answer = await fetch(path, { ...init, headers: { ...headers(), ...init.headers }, redirect: "error" });
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer;
}

/** The JSON of a GET. Throws `Refused`, and `TypeError` without a connection. */
export async function ask<T>(path: string): Promise<T> {
  return (await (await answered(path)).json()) as T;
}

/** The text of a GET. */
export async function askText(path: string): Promise<string> {
  return (await answered(path)).text();
}

/** An action's kubectl line, and with `confirmed` its execution. */
export async function act(request: ActionRequest, confirmed: boolean): Promise<{ kubectl: string; done: boolean }> {
  const answer = await answered("api/actions", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Karpenter-Console": "1" },
    body: JSON.stringify({ ...request, confirmed }),
  });
  return (await answer.json()) as { kubectl: string; done: boolean };
}

const LONGEST_PAUSE = 10_000;

/** Follow the stream until stopped. Server-sent events over fetch, because EventSource cannot send a token. */
export function follow(
  onView: (view: View) => void,
  onStale: (fault: FeedFault) => void,
  onLost: (reason: string, status: number) => void,
): () => void {
  const stop = new AbortController();
  void (async () => {
    let pause = 500;
    while (!stop.signal.aborted) {
      try {
        const answer = await answered("api/stream", { signal: stop.signal });
        onStale({ fault: "", since: "" });
        for await (const event of events(answer)) {
          pause = 500;
          if (event.kind === "fault") onStale(JSON.parse(event.data) as FeedFault);
          else onView(JSON.parse(event.data) as View);
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Refused) onLost(error.message, error.status);
        else onLost("The connection to the console is lost. Is it still running?", 0);
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE, pause * 2);
    }
  })();
  return () => stop.abort();
}

async function* events(answer: Response): AsyncGenerator<{ kind: string; data: string }> {
  if (answer.body === null) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const parts: string[] = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    let rest = value;
    for (let end = boundary(parts, rest); end >= 0; end = boundary(parts, rest)) {
      const event = (parts.join("") + rest.slice(0, end)).trimEnd();
      parts.length = 0;
      rest = rest.slice(end);
      const [, kind = "view", data] = /^(?:event: (\w+)\n)?data: (.*)$/s.exec(event) ?? [];
      if (data !== undefined) yield { kind, data };
    }
    if (rest) parts.push(rest);
  }
}

/** Where the event that begins in `parts` ends in `rest`; -1 if later. */
function boundary(parts: string[], rest: string): number {
  const last = parts.at(-1);
  if (last?.endsWith("\n") && rest.startsWith("\n")) return 1;
  const found = rest.indexOf("\n\n");
  return found < 0 ? -1 : found + 2;
}
