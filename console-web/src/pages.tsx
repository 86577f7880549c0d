// Overview, pending pods, NodePools with the budget calendar, spending.

import type { JSX } from "preact";
import { ActionButton } from "./actions";
import { ask, askText, type BudgetSpan, type HistoryAnswer, type Pool, type Series, type Session, type View } from "./api";
import { Timeline, told } from "./decisions";
import { ago, cores, dollars, grouped, HOURS_PER_MONTH, moment, percent, perMonth } from "./format";
import { NodeMap } from "./nodes";
import { Figure, Meter, Panel, Table, TimeChart, useAnswer } from "./parts";
import { link, type Place, setOptions } from "./place";

export interface PageProps {
  view: View;
  place: Place;
  session: Session;
  /** Samples of the history, or of the time since the page was opened. */
  series: Series;
  history: HistoryAnswer | undefined;
}

export function OverviewPage(props: PageProps): JSX.Element {
  const { view } = props;
  const types = view.spending["instance type"] ?? [];
  return (
    <>
      <Panel title="Cluster" id="cluster" wide>
        <dl class="figures">
          <Figure id="nodes" title="Active nodes" value={String(view.nodes.length)} />
          <Figure id="pending" title="Pending pods" value={String(view.pods.pending)} hint={`of ${view.pods.total}; ${view.pending.length} without a node`} />
          <Figure id="cpu" title="CPU requested" value={percent(view.fill.cpu)} share={view.fill.cpu} />
          <Figure id="memory" title="Memory requested" value={percent(view.fill.memory)} share={view.fill.memory} />
          <Figure id="price" title="Price per hour" value={dollars(view.price, 3)} hint={`${perMonth(view.price)} per month${view.unpricedNodes ? `; ${view.unpricedNodes} without a price` : ""}`} />
          <Figure id="bound" title="Price against bound" value={view.bound ? `${(view.managedPrice / view.bound).toFixed(2)} ×` : "–"} hint={view.bound ? `at least ${dollars(view.bound, 3)}` : "no bound yet"} />
        </dl>
      </Panel>
      <Panel title="Nodes" id="map" wide>
        <NodeMap view={view} place={props.place} />
      </Panel>
      <Panel title="Provisioning timeline" id="timeline">
        <Timeline decisions={told(view, props.history)} now={view.now} />
        <p><a href={link("decisions")}>All decisions</a></p>
      </Panel>
      <Panel title="Instance types" id="types">
        {types.length === 0 && <p class="hint">No nodes with a price.</p>}
        <ul class="shares">
          {types.slice(0, 12).map((row) => (
            <li key={row.name}>
              <span>{row.name}</span>
              <Meter share={view.nodes.length ? row.count / view.nodes.length : 0} label={`${row.name}: share of the nodes`} />
              <span class="number">{row.count} × {dollars(row.price / row.count)}</span>
            </li>
          ))}
        </ul>
        {types.length > 12 && <p><a href={link("spend")}>{types.length - 12} more</a></p>}
      </Panel>
      <Panel title="Waiting pods" id="waiting">
        {view.pending.length === 0 ? (
          <p class="hint">No pod waits.</p>
        ) : (
          <ul class="waiting">
            {view.pending.slice(0, 6).map((pod) => (
              <li key={pod.pod}>
                <a href={link("pod", pod.pod)}>{pod.pod}</a> <span class="hint">{ago(pod.since, view.now)}</span>
                <br />
                {pod.reason}
              </li>
            ))}
          </ul>
        )}
        {view.pending.length > 6 && <p><a href={link("pending")}>All {view.pending.length}</a></p>}
      </Panel>
      <CostPanel {...props} />
    </>
  );
}

function CostPanel(props: PageProps): JSX.Element {
  const { series, session } = props;
  const last = series.price.at(-1) ?? 0;
  const prices = series.price.length ? series.price : [0];
  const label = `Price per hour: now ${dollars(last, 3)}, least ${dollars(Math.min(...prices), 3)}, most ${dollars(Math.max(...prices), 3)}`;
  return (
    <Panel title="Cost over time (UTC)" id="cost" wide>
      {session.hasHistory ? (
        <label>
          The last{" "}
          <select value={props.place.options.get("hours") ?? "24"} onChange={(event) => setOptions(props.place, { hours: event.currentTarget.value })}>
            {[1, 6, 24, 168, 720].map((hours) => <option value={String(hours)}>{hours < 48 ? `${hours} h` : `${hours / 24} days`}</option>)}
          </select>
        </label>
      ) : (
        <p class="hint">Since this page was opened{session.historyFault ? "." : "; the controller keeps a longer history with --history-file."}</p>
      )}
      <div class="charts">
      <TimeChart
        label={label}
        unit="$"
        times={series.times}
        lines={[
          { title: "price per hour", color: "--accent", values: series.price },
          { title: "lower bound", color: "--good", values: series.bound, dashed: true },
          ...(series.classic.some((value) => value !== null) ? [{ title: "classic packing", color: "--warn", values: series.classic, dashed: true }] : []),
        ]}
      />
      <TimeChart
        label={`Pending pods: now ${series.pending.at(-1) ?? 0}, most ${Math.max(0, ...series.pending)}`}
        unit=""
        times={series.times}
        lines={[{ title: "pending pods", color: "--warn", values: series.pending }]}
      />
      </div>
    </Panel>
  );
}

export function PendingPage(props: PageProps): JSX.Element {
  const { view } = props;
  return (
    <Panel title="Pending pods" id="pending" wide>
      <p class="hint">The reason is that of the next scheduling pass: what would have to change, or the node that is planned.</p>
      <Table
        id="pods"
        label="pending pods"
        filter
        place={props.place}
        rows={view.pending}
        rowKey={(row) => row.pod}
        empty="No pod waits."
        columns={[
          { title: "pod", value: (row) => row.pod, cell: (row) => <a href={link("pod", row.pod)}>{row.pod}</a> },
          { title: "waits", value: (row) => (row.since ? (Date.parse(view.now) - Date.parse(row.since)) / 1000 : null), cell: (row) => ago(row.since, view.now) },
          { title: "CPU", value: (row) => row.cpuMillis, cell: (row) => cores(row.cpuMillis) },
          { title: "memory MiB", value: (row) => row.memoryMiB },
          { title: "why, and the nearest fit", value: (row) => row.reason, long: true },
        ]}
      />
    </Panel>
  );
}

export function PodPage(props: { view: View; name: string }): JSX.Element {
  const pod = props.view.pending.find((row) => row.pod === props.name);
  const explained = useAnswer(props.name, () => askText(`api/explanation?subject=pod/${props.name.split("/").map(encodeURIComponent).join("/")}`));
  return (
    <Panel title={`Pod ${props.name}`} id="pod" wide>
      {pod ? <p>{pod.reason}</p> : <p class="hint">This pod does not wait.</p>}
      <h3>Explanation</h3>
      <pre id="explanation" tabindex={0} aria-label="Explanation">{explained.answer ?? (explained.fault || "Computing…")}</pre>
    </Panel>
  );
}

export function PoolsPage(props: PageProps): JSX.Element {
  const { view, session } = props;
  const calendar = useAnswer(`budgets ${view.pools.map((pool) => pool.name + pool.freeze).join()}`, () => ask<BudgetSpan[]>("api/budgets?days=7"));
  return (
    <>
      <Panel title="NodePools" id="pools" wide>
        <Table
          id="pools"
          label="NodePools"
          place={props.place}
          rows={view.pools}
          rowKey={(row) => row.name}
          empty="No NodePools that can be seen."
          columns={[
            { title: "NodePool", value: (row: Pool) => row.name },
            { title: "nodes", value: (row: Pool) => row.nodes },
            { title: "$/h", value: (row: Pool) => row.price, cell: (row: Pool) => dollars(row.price) },
            { title: "CPU %", value: (row: Pool) => Math.round(row.cpu * 100) },
            { title: "memory %", value: (row: Pool) => Math.round(row.memory * 100) },
            { title: "drifted", value: (row: Pool) => row.drifted },
            { title: "may be disrupted now", value: (row: Pool) => budgetsText(row.budgets, view.now), long: true },
            { title: "state", value: (row: Pool) => row.freeze || (row.ready ? "ready" : "not ready"), long: true },
          ]}
        />
        <h3>Actions</h3>
        <p class="hint">With your own rights; each shows the kubectl command that does the same first.</p>
        <div class="actions">
          <span>The whole cluster</span>
          <ActionButton session={session} place={props.place} label="Freeze the cluster" timed request={{ action: "freeze", target: "" }} />
          <ActionButton session={session} place={props.place} label="Thaw the cluster" request={{ action: "thaw", target: "" }} />
          <span />
          {view.pools.map((pool) => (
            <>
              <span>{pool.name}</span>
              <ActionButton session={session} place={props.place} label={`Freeze ${pool.name}`} timed request={{ action: "freeze", target: pool.name }} />
              <ActionButton session={session} place={props.place} label={`Thaw ${pool.name}`} request={{ action: "thaw", target: pool.name }} />
              <ActionButton session={session} place={props.place} label={`Wake ${pool.name}`} timed request={{ action: "wake", target: pool.name }} />
            </>
          ))}
        </div>
      </Panel>
      <Panel title="Budget calendar" id="calendar" wide>
        <p class="hint">How many nodes may be disrupted at a time over the next seven days, with today's number of nodes.</p>
        {calendar.fault && <p class="fault">{calendar.fault}</p>}
        {calendar.answer && <Calendar spans={calendar.answer} now={view.now} />}
      </Panel>
    </>
  );
}

/** Reasons with the same budget stand together. */
function budgetsText(budgets: Pool["budgets"], now: string): string {
  const byText = grouped(budgets, (budget) => budgetText(budget, now));
  if (byText.size === 1) return [...byText.keys()].join();
  return [...byText].map(([text, own]) => `${own.map((budget) => budget.reason.toLowerCase()).join(", ")}: ${text}`).join("; ");
}

function budgetText(budget: Pool["budgets"][number], now: string): string {
  if (budget.allowed === null) return "all";
  const opens = budget.remaining === 0 && budget.opensAt ? `, more at ${moment(budget.opensAt, now)}` : "";
  return `${budget.remaining} of ${budget.allowed}${opens}`;
}

function Calendar(props: { spans: BudgetSpan[]; now: string }): JSX.Element {
  const rows = grouped(props.spans, (span) => `${span.pool}: ${span.reason.toLowerCase()}`);
  const begin = Math.min(...props.spans.map((span) => Date.parse(span.begins)));
  const end = Math.max(...props.spans.map((span) => Date.parse(span.ends)));
  const text = (span: BudgetSpan) => (span.allowed === null ? "all" : String(span.allowed));
  if (rows.size === 0) return <p class="hint">No NodePools that can be seen.</p>;
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="Table: budget calendar">
      <table class="calendar">
        <thead>
          <tr>
            <th scope="col">NodePool and reason</th>
            <th scope="col">
              <span class="visually-hidden">from {moment(props.spans[0]!.begins, props.now)} UTC, seven days</span>
              <span class="days" aria-hidden="true">{[0, 1, 2, 3, 4, 5, 6].map((day) => <span>{new Date(begin + day * 86_400_000).toISOString().slice(5, 16).replace("T", " ")}</span>)}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {[...rows].map(([name, spans]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                <div class="spans">
                  {spans.map((span) => {
                    const said = `${moment(span.begins, props.now)} to ${moment(span.ends, props.now)}: ${text(span)}`;
                    return (
                      <span class={span.allowed === 0 ? "span closed" : "span open"} style={{ width: `${(100 * (Date.parse(span.ends) - Date.parse(span.begins))) / (end - begin)}%` }} title={said}>
                        <span class="visually-hidden">{said}</span>
                        <span aria-hidden="true">{text(span)}</span>
                      </span>
                    );
                  })}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function SpendPage(props: PageProps): JSX.Element {
  const { view } = props;
  const spent = props.history?.spent ?? {};
  const total = view.price;
  return (
    <>
      {Object.entries(view.spending).map(([dimension, rows]) => {
        const usd = new Map((spent[dimension] ?? []).map((row) => [row.name, row.usd]));
        return (
          <Panel title={`By ${dimension}`} id={dimension.replace(/\s/g, "-")} key={dimension}>
            <Table
              id={dimension.replace(/\s/g, "-").toLowerCase()}
              label={`spending by ${dimension}`}
              place={props.place}
              rows={rows}
              rowKey={(row) => row.name}
              empty="No nodes with a price."
              columns={[
                { title: dimension, value: (row) => row.name },
                { title: "$/h", value: (row) => row.price, cell: (row) => dollars(row.price) },
                { title: "$/month", value: (row) => Math.round(row.price * HOURS_PER_MONTH) },
                { title: "share %", value: (row) => (total ? Math.round((100 * row.price) / total) : 0) },
                ...(usd.size ? [{ title: "spent $", value: (row: { name: string }) => usd.get(row.name) ?? 0, cell: (row: { name: string }) => dollars(usd.get(row.name) ?? 0, 2) }] : []),
              ]}
            />
          </Panel>
        );
      })}
      <p class="hint wide">A namespace pays for the mean of its shares of CPU and memory of each node. What no pod requests is shown apart. This is an estimate: providers sell whole nodes.</p>
    </>
  );
}
