// What was spent and saved: the ledger of the history, or without one what the decisions of the view say.

import type { JSX } from "preact";
import { ask, type Ledger, type LedgerPart } from "./api";
import { decisionColumns, type Told, told } from "./decisions";
import { dollars, HOURS_PER_MONTH } from "./format";
import type { PageProps } from "./pages";
import { Figure, Panel, Table, TimeChart, useAnswer } from "./parts";
import { type Place, setOptions } from "./place";

const PERIODS = [1, 7, 30, 90];
const LEDGER_SECONDS = 60_000;
const SHOWN_DECISIONS = 200;

export function SavingsPage(props: PageProps): JSX.Element {
  return props.session.hasHistory ? <LedgerPage now={props.view.now} place={props.place} /> : <Estimates {...props} />;
}

function LedgerPage(props: { now: string; place: Place }): JSX.Element {
  const days = props.place.options.get("days") ?? "7";
  const asked = useAnswer(`ledger ${days}`, () => ask<Ledger>(`api/ledger?days=${encodeURIComponent(days)}`), LEDGER_SECONDS);
  const ledger = asked.answer;
  return (
    <>
      <Panel title="Savings" id="savings" wide>
        <label>
          The last{" "}
          <select value={days} onChange={(event) => setOptions(props.place, { days: event.currentTarget.value })}>
            {PERIODS.map((count) => <option value={String(count)}>{count === 1 ? "day" : `${count} days`}</option>)}
          </select>
        </label>
        <div role="status">
          {asked.fault && <p class="fault">{asked.fault}</p>}
          {!asked.fault && !ledger && <p>Computing…</p>}
        </div>
        {ledger && <Sums ledger={ledger} />}
        <p class="hint">Estimates from listed prices, not a bill: without discounts, volumes, traffic and the control plane. Times without samples are not counted.</p>
      </Panel>
      {ledger && <Days ledger={ledger} place={props.place} />}
      {ledger && <Unused parts={ledger.unused} place={props.place} />}
      {ledger && <Parts parts={ledger.parts} place={props.place} />}
      {ledger && <Decisions ledger={ledger} now={props.now} place={props.place} />}
    </>
  );
}

const sumOf = (ledger: Ledger, figure: "nodePools" | "lowerBound" | "classicPacking"): number => ledger.days.reduce((sum, day) => sum + day[figure], 0);

function Sums(props: { ledger: Ledger }): JSX.Element {
  const { ledger } = props;
  const [paid, bound, classic] = [sumOf(ledger, "nodePools"), sumOf(ledger, "lowerBound"), sumOf(ledger, "classicPacking")];
  return (
    <dl class="figures">
      <Figure id="spent" title="Spent" value={dollars(ledger.spent, 2)} hint={`in ${ledger.knownHours.toFixed(1)} hours that are known`} />
      <Figure id="paid" title="NodePools" value={bound > 0 || classic > 0 ? dollars(paid, 2) : "–"} hint={bound > 0 ? `${(paid / bound).toFixed(2)} × the lower bound` : "no lower bound known"} />
      <Figure id="classic" title="Classic packing" value={classic > 0 ? dollars(classic, 2) : "–"} hint={classic > 0 ? "the same pods, first-fit decreasing" : "not known for these samples"} />
      <Figure id="saved-by-packing" title="Saved by packing" value={classic > 0 ? amount(ledger.savedByPacking) : "–"} hint="classic packing less NodePools" />
      <Figure id="saved-by-decisions" title="Saved by decisions" value={amount(ledger.savedByDecisions)} hint="realized, 24 h of each at most" />
    </dl>
  );
}

const amount = (usd: number): string => (usd < 0 ? `−${dollars(-usd, 2)}` : dollars(usd, 2));

function Days(props: { ledger: Ledger; place: Place }): JSX.Element {
  const { days } = props.ledger;
  const compared = (usd: number, day: Ledger["days"][number]) => (day.classicPacking > 0 ? dollars(usd, 2) : "–");
  return (
    <Panel title="Days" id="days" wide>
      {days.length > 1 && (
        <TimeChart
          label={`USD per day, of ${days.length} days; the table has the figures`}
          unit="$"
          times={days.map((day) => Date.parse(day.day) / 1000)}
          lines={[
            { title: "NodePools", color: "--accent", values: days.map((day) => day.nodePools) },
            { title: "lower bound", color: "--good", values: days.map((day) => day.lowerBound), dashed: true },
            { title: "classic packing", color: "--warn", values: days.map((day) => day.classicPacking), dashed: true },
          ]}
        />
      )}
      <Table
        id="days"
        label="days"
        place={props.place}
        rows={days}
        rowKey={(row) => row.day}
        empty="No samples in this period."
        columns={[
          { title: "day (UTC)", value: (row) => row.day },
          { title: "hours known", value: (row) => row.knownHours, cell: (row) => row.knownHours.toFixed(1) },
          { title: "spent", value: (row) => row.spent, cell: (row) => dollars(row.spent, 2) },
          { title: "NodePools", value: (row) => row.nodePools, cell: (row) => compared(row.nodePools, row) },
          { title: "lower bound", value: (row) => row.lowerBound, cell: (row) => compared(row.lowerBound, row) },
          { title: "classic packing", value: (row) => row.classicPacking, cell: (row) => compared(row.classicPacking, row) },
        ]}
      />
      <p class="hint">NodePools, bound and classic packing count the hours only for which all three are known.</p>
    </Panel>
  );
}

function Unused(props: { parts: LedgerPart[]; place: Place }): JSX.Element {
  return (
    <Panel title="Capacity that no pod requests" id="unused">
      <PartTable id="unused" label="unused capacity by reason" title="why it is there" {...props} />
    </Panel>
  );
}

/** A panel per dimension, the label of teams among them. */
function Parts(props: { parts: LedgerPart[]; place: Place }): JSX.Element {
  const dimensions = [...new Set(props.parts.map((part) => part.by))];
  return (
    <>
      {dimensions.map((dimension) => {
        const id = `spent-${dimension.replace(/[^\w]+/g, "-").toLowerCase()}`;
        return (
          <Panel title={`Spent by ${dimension}`} id={id} key={dimension}>
            <PartTable id={id} label={`spent by ${dimension}`} title={dimension} parts={props.parts.filter((part) => part.by === dimension)} place={props.place} />
          </Panel>
        );
      })}
    </>
  );
}

function PartTable(props: { id: string; label: string; title: string; parts: LedgerPart[]; place: Place }): JSX.Element {
  const total = props.parts.reduce((sum, part) => sum + part.spent, 0);
  return (
    <Table
      id={props.id}
      label={props.label}
      place={props.place}
      rows={props.parts}
      rowKey={(row) => row.name}
      empty="Nothing in this period."
      columns={[
        { title: props.title, value: (row) => row.name, long: true },
        { title: "spent", value: (row) => row.spent, cell: (row) => dollars(row.spent, 2) },
        { title: "share %", value: (row) => (total ? Math.round((100 * row.spent) / total) : 0) },
      ]}
    />
  );
}

function Decisions(props: { ledger: Ledger; now: string; place: Place }): JSX.Element {
  const column = decisionColumns<Ledger["decisions"][number]>(props.now);
  const left = props.ledger.decisions.length - SHOWN_DECISIONS;
  return (
    <Panel title="What disruptions saved" id="saved" wide>
      <Table
        id="saved"
        label="savings"
        filter
        place={props.place}
        rows={props.ledger.decisions.slice(0, SHOWN_DECISIONS)}
        rowKey={(row) => row.id}
        empty="No disruption in this period."
        columns={[
          column.at,
          column.text,
          column.reason,
          column.outcome,
          { title: "pods", value: (row) => row.pods },
          { title: "estimated $/h", value: (row) => row.estimatedSavingPerHour, cell: (row) => dollars(row.estimatedSavingPerHour) },
          { title: "realized $/h", value: (row) => row.realizedSavingPerHour, cell: (row) => dollars(row.realizedSavingPerHour) },
          { title: "saved", value: (row) => row.saved, cell: (row) => dollars(row.saved, 2) },
        ]}
      />
      {left > 0 && <p class="hint">The latest {SHOWN_DECISIONS} are shown; the sum counts {left} more.</p>}
    </Panel>
  );
}

/** Without a history: what was announced when each decision was made. */
function Estimates(props: PageProps): JSX.Element {
  const saving = told(props.view, props.history).filter((row) => row.saving !== null);
  const column = decisionColumns<Told>(props.view.now);
  const total = saving.reduce((sum, row) => sum + (row.saving ?? 0), 0);
  return (
    <Panel title="Savings" id="savings" wide>
      <p class="verdict"><strong data-figure="savings">{dollars(total, 2)} per hour</strong> by {saving.length} decisions in the time that is known.</p>
      <p class="hint">Estimated when each was decided, from the prices of that moment. Later decisions may have undone or repeated a part of it, so the sum is not what the cluster costs less now.</p>
      <Table
        id="savings"
        label="savings"
        filter
        place={props.place}
        rows={saving}
        rowKey={(row) => row.id}
        empty="No decision with a known saving."
        columns={[
          column.at,
          column.text,
          column.reason,
          { title: "saves $/h", value: (row) => row.saving, cell: (row) => dollars(row.saving) },
          { title: "$/month", value: (row) => Math.round((row.saving ?? 0) * HOURS_PER_MONTH) },
          column.outcome,
        ]}
      />
    </Panel>
  );
}
