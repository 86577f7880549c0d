// What was decided: the timeline, the list, and one decision with its nodes before and after.

import type { JSX } from "preact";
import { ask, type Decision, type HistoryAnswer, type Interruption, type NodeFacts, type RecordedDecision, type Session, type View } from "./api";
import { ago, dollars, moment, percent, plural, signed } from "./format";
import { type Column, Panel, Table, useAnswer } from "./parts";
import { link, type Place } from "./place";

/** A decision from whichever source knows it. */
export interface Told extends Decision {
  outcome: string;
}

/** What marks the IDs of interruptions, of which the history knows no more than that they were. */
const INTERRUPTION_ID = "interruption-";

/** What the history recorded, and what only the objects of the cluster tell of; the latest first. */
export function told(view: View, history: HistoryAnswer | undefined): Told[] {
  const recorded = [...(history?.decisions ?? []).map(ofRecord), ...(history?.interruptions ?? []).map(ofInterruption)];
  const known = new Set(recorded.flatMap((decision) => [...decision.nodes, ...decision.replaces, ...decision.replacedBy]));
  // No history has failed launches.
  const others = view.decisions.filter((decision) => decision.kind === "failure" || !decision.nodes.every((name) => known.has(name)));
  const all = [...recorded, ...others.map((decision) => ({ ...decision, outcome: "" }))];
  return all.sort((one, other) => Date.parse(other.at) - Date.parse(one.at));
}

function ofRecord(record: RecordedDecision): Told {
  const [before, after] = [record.before, record.after].map((nodes) => nodes.map((node) => node.name)) as [string[], string[]];
  const isDisruption = record.kind === "disruption";
  return {
    ...record,
    nodes: isDisruption ? before : after,
    replaces: isDisruption ? [] : before,
    replacedBy: isDisruption ? after : [],
    restarts: isDisruption ? record.pods : null,
  };
}

function ofInterruption(one: Interruption): Told {
  const id = `${INTERRUPTION_ID}${one.at}-${one.node}`;
  return { id, at: one.at, kind: "interruption", text: one.message || one.reason, reason: one.reason, nodes: [one.node], replaces: [], replacedBy: [], saving: null, restarts: null, outcome: "" };
}

const MARKS: Record<string, string> = { launch: "+", disruption: "−", interruption: "!", failure: "×" };

/** Decisions on a line of time, with the latest on the right. */
export function Timeline(props: { decisions: Told[]; now: string }): JSX.Element {
  const shown = props.decisions.slice(0, 60);
  if (shown.length === 0) return <p class="hint">Nothing was decided in the time that is known.</p>;
  const end = Date.parse(props.now);
  const begin = Math.min(...shown.map((decision) => Date.parse(decision.at)));
  const place = (at: string) => (end === begin ? 98 : 2 + (96 * (Date.parse(at) - begin)) / (end - begin));
  return (
    <div>
      <div class="timeline" aria-hidden="true">
        {shown.map((decision) => (
          <span key={decision.id} class={`mark ${decision.kind}`} style={{ left: `${place(decision.at)}%` }} />
        ))}
      </div>
      <p class="ends hint" aria-hidden="true"><span>{moment(new Date(begin).toISOString(), props.now)}</span><span>now</span></p>
      <ol class="entries">
        {shown.slice(0, 8).map((decision) => (
          <li key={decision.id}>
            <time dateTime={decision.at}>{moment(decision.at, props.now)}</time>
            <span class={`kind ${decision.kind}`} aria-hidden="true">{MARKS[decision.kind] ?? "·"}</span>
            <a href={link("decision", decision.id)}>{decision.text}</a>
            {decision.saving !== null && <span class="hint"> saves {dollars(decision.saving, 2)}/h</span>}
          </li>
        ))}
      </ol>
    </div>
  );
}

/** The columns that every table of decisions has. */
export function decisionColumns<Row extends Pick<Told, "id" | "at" | "text" | "reason" | "outcome">>(now: string) {
  return {
    at: { title: "at (UTC)", value: (row) => row.at, cell: (row) => moment(row.at, now) },
    text: { title: "decision", value: (row) => row.text, cell: (row) => <a href={link("decision", row.id)}>{row.text}</a> },
    reason: { title: "for", value: (row) => row.reason },
    outcome: { title: "outcome", value: (row) => row.outcome },
  } satisfies Record<string, Column<Row>>;
}

export function DecisionsPage(props: { view: View; history: HistoryAnswer | undefined; place: Place }): JSX.Element {
  const decisions = told(props.view, props.history);
  const column = decisionColumns<Told>(props.view.now);
  return (
    <>
      <Panel title="Provisioning timeline" id="timeline" wide>
        <Timeline decisions={decisions} now={props.view.now} />
      </Panel>
      <Panel title="Decisions" id="decisions" wide>
        <Table
          id="decisions"
          label="decisions"
          filter
          place={props.place}
          rows={decisions}
          rowKey={(row) => row.id}
          empty="Nothing was decided in the time that is known."
          columns={[
            column.at,
            { title: "kind", value: (row) => row.kind },
            column.text,
            column.reason,
            { title: "saves $/h", value: (row) => row.saving, cell: (row) => dollars(row.saving) },
            { title: "restarts", value: (row) => row.restarts },
            column.outcome,
          ]}
        />
      </Panel>
    </>
  );
}

export function DecisionPage(props: { view: View; session: Session; history: HistoryAnswer | undefined; id: string }): JSX.Element {
  const isSeen = props.id.startsWith(INTERRUPTION_ID) || props.view.decisions.some((decision) => decision.id === props.id);
  const asks = props.session.hasHistory && !isSeen;
  const recorded = useAnswer(asks ? props.id : "", () => ask<RecordedDecision>(`api/decision?id=${encodeURIComponent(props.id)}`));
  const seen = [...props.view.decisions, ...told(props.view, props.history)].find((decision) => decision.id === props.id);
  if (recorded.answer) return <Recorded decision={recorded.answer} view={props.view} />;
  if (seen && isSeen) return <Seen decision={seen} view={props.view} hasHistory={props.session.hasHistory} />;
  return (
    <Panel title="Decision" id="decision" wide>
      <p class="hint">{recorded.fault || (asks ? "Looking it up…" : "This decision is not known (any more).")}</p>
    </Panel>
  );
}

function Recorded(props: { decision: RecordedDecision; view: View }): JSX.Element {
  const { decision } = props;
  const isLaunch = decision.kind === "launch";
  const cost = (nodes: NodeFacts[]) => nodes.reduce((sum, node) => sum + (node.price ?? 0), 0);
  return (
    <Panel title={decision.text} id="decision" wide>
      <dl class="facts">
        <div><dt>Decided</dt><dd>{moment(decision.at, props.view.now)} UTC, {ago(decision.at, props.view.now)} ago</dd></div>
        <div><dt>For</dt><dd>{decision.reason}</dd></div>
        <div><dt>Outcome</dt><dd>{decision.outcome}{decision.cause && `: ${decision.cause}`}</dd></div>
        {!isLaunch && <div><dt>Pods that move</dt><dd>{decision.pods}</dd></div>}
        {!isLaunch && <div><dt>Estimated saving</dt><dd>{decision.saving === null ? "not known" : `${dollars(decision.saving)} per hour`}</dd></div>}
      </dl>
      <BeforeAfter
        before={decision.before}
        after={decision.after}
        moving={isLaunch ? null : decision.pods}
        change={signed(cost(decision.after) - cost(decision.before))}
      />
    </Panel>
  );
}

/** What the objects of the cluster still tell of a decision. */
function Seen(props: { decision: Decision; view: View; hasHistory: boolean }): JSX.Element {
  const { decision, view } = props;
  const facts = (name: string): NodeFacts => {
    const node = view.nodes.find((row) => row.name === name);
    return { name, pool: node?.pool ?? "", type: node?.type ?? "", zone: node?.zone ?? "", capacityType: node?.capacityType ?? "", price: node?.price ?? null, pods: node?.pods ?? 0, cpu: node?.cpu ?? 0 };
  };
  const launched = (decision.kind === "launch" ? decision.nodes : decision.replacedBy).map(facts);
  const gone = decision.kind === "launch" ? decision.replaces.map(facts) : decision.nodes.map(facts);
  return (
    <Panel title={decision.text} id="decision" wide>
      <dl class="facts">
        <div><dt>Decided</dt><dd>{moment(decision.at, view.now)} UTC, {ago(decision.at, view.now)} ago</dd></div>
        <div><dt>For</dt><dd>{decision.reason}</dd></div>
        <div><dt>Estimated saving</dt><dd>{decision.saving === null ? "not known" : `${dollars(decision.saving)} per hour`}</dd></div>
      </dl>
      <BeforeAfter before={gone} after={launched} moving={null} change="" />
      {!props.hasHistory && <p class="hint">No history is kept here, so nodes that are gone have their names only.</p>}
    </Panel>
  );
}

function Host(props: { node: NodeFacts; class: string }): JSX.Element {
  const { node } = props;
  return (
    <li class={`host ${props.class}`}>
      <strong>{node.name}</strong>
      <span>{node.type || "type not known"}{node.zone && `, ${node.zone}`}{node.capacityType && `, ${node.capacityType}`}</span>
      <span>{dollars(node.price)}/h{node.type && `, ${plural(node.pods, "pod")}, CPU ${percent(node.cpu)}`}</span>
      <span class="dots" aria-hidden="true">{Array.from({ length: Math.min(40, node.pods) }, () => <i />)}</span>
    </li>
  );
}

export function BeforeAfter(props: { before: NodeFacts[]; after: NodeFacts[]; moving: number | null; change: string }): JSX.Element {
  return (
    <div class="picture">
      <div>
        <h3>Before</h3>
        <ul>{props.before.map((node) => <Host node={node} class="gone" />)}</ul>
        {props.before.length === 0 && <p class="hint">no node goes</p>}
      </div>
      <div class="arrow">
        <span aria-hidden="true">→</span>
        {props.moving !== null && <span>{plural(props.moving, "pod")} {props.moving === 1 ? "moves" : "move"}{props.after.length === 0 && props.moving > 0 ? " to nodes that exist" : ""}</span>}
        {props.change && <span>{props.change}/h</span>}
      </div>
      <div>
        <h3>After</h3>
        <ul>{props.after.map((node) => <Host node={node} class="new" />)}</ul>
        {props.after.length === 0 && <p class="hint">no node comes</p>}
      </div>
    </div>
  );
}
