// The console: signs in, follows the stream, and shows the page that the address names.

import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./console.css";
import { ask, type FeedFault, follow, type HistoryAnswer, type Pool, Refused, type Series, type Session, signedIn, type View } from "./api";
import { DecisionPage, DecisionsPage } from "./decisions";
import { grouped, moment } from "./format";
import { NodePage, NodesPage } from "./nodes";
import { OverviewPage, PendingPage, PodPage, PoolsPage, SpendPage } from "./pages";
import { useAnswer } from "./parts";
import { SavingsPage } from "./savings";
import { link, type Place, usePlace } from "./place";
import { questionOf, WhatIfPage } from "./whatif";

const TABS: [string, string][] = [
  ["overview", "Overview"],
  ["nodes", "Nodes"],
  ["pending", "Pending"],
  ["decisions", "Decisions"],
  ["pools", "NodePools"],
  ["spend", "Spending"],
  ["savings", "Savings"],
  ["what-if", "What if"],
];
/** Which tab a page about one object belongs to. */
const TAB_OF: Record<string, string> = { node: "nodes", pod: "pending", decision: "decisions" };
const LIVE_POINTS = 600;
const HISTORY_SECONDS = 30_000;

function App(): JSX.Element {
  const [session, setSession] = useState<Session>();
  const [problem, setProblem] = useState<{ status: number; text: string }>();
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    ask<Session>("api/session").then(
      (answer) => {
        setProblem(undefined);
        setSession(answer);
      },
      (error: unknown) => setProblem(error instanceof Refused ? { status: error.status, text: error.message } : { status: 0, text: String(error) }),
    );
  }, [attempt]);
  const again = () => {
    setSession(undefined);
    setAttempt((count) => count + 1);
  };
  if (session) return <Console session={session} onSignOut={again} />;
  return <SignIn problem={problem} onToken={again} />;
}

function SignIn(props: { problem: { status: number; text: string } | undefined; onToken: () => void }): JSX.Element {
  const [token, setToken] = useState("");
  if (!props.problem) return <main class="sign-in"><p role="status">Connecting…</p></main>;
  return (
    <main class="sign-in">
      <h1>karpenter console</h1>
      <p role="alert" class="fault">{props.problem.text}</p>
      {[401, 403].includes(props.problem.status) && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            signedIn.token = token.trim();
            props.onToken();
          }}
        >
          <label>
            Token <input type="password" autocomplete="off" required value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          </label>
          <button class="primary" type="submit">Sign in</button>
          <p class="hint">You see what kubectl would show you. A token of a ServiceAccount: kubectl create token NAME. It stays in this browser tab.</p>
        </form>
      )}
      {props.problem.status !== 401 && <button type="button" onClick={props.onToken}>Try again</button>}
    </main>
  );
}

function Console(props: { session: Session; onSignOut: () => void }): JSX.Element {
  const { session } = props;
  const place = usePlace();
  const [view, setView] = useState<View>();
  const [lost, setLost] = useState("");
  const [stale, setStale] = useState<FeedFault>({ fault: "", since: "" });
  const live = useRef<Series>({ times: [], price: [], managedPrice: [], bound: [], classic: [], nodes: [], pending: [] });
  const hours = place.options.get("hours") ?? "24";
  const history = useAnswer(session.hasHistory ? `history ${hours}` : "", () => ask<HistoryAnswer>(`api/history?hours=${encodeURIComponent(hours)}`), HISTORY_SECONDS);
  useEffect(
    () =>
      follow(
        (next) => {
          remember(live.current, next);
          setLost("");
          setView(next);
        },
        (fault) => {
          setLost("");
          setStale(fault);
        },
        (why, status) => (status === 401 || status === 403 ? props.onSignOut() : setLost(why)),
      ),
    [],
  );
  const heading = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => {
    document.title = `${TABS.find(([page]) => page === (TAB_OF[place.page] ?? place.page))?.[1] ?? "Console"}${place.subject ? `: ${place.subject}` : ""} – karpenter console`;
    if (!first.current) heading.current?.focus();
    first.current = false;
  }, [place.page, place.subject]);
  const since = lost ? view?.now : stale.since;
  const problem = lost || stale.fault ? `${since ? `Stale since ${moment(since, view?.now ?? "")} UTC: ` : ""}${lost || stale.fault}` : view?.fault;
  const noHistory = session.historyFault || view?.historyFault;
  const series = history.answer && history.answer.samples.times.length > 0 ? history.answer.samples : { ...live.current, times: [...live.current.times] };
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); heading.current?.focus(); }}>Skip to the content</a>
      <header>
        <h1><a href={link("overview")}>karpenter console</a></h1>
        <p class="title">{view ? `${view.title}, as of ${moment(view.now, "")} UTC` : "Waiting for the first objects…"}</p>
        <p class="user">
          {session.user}
          {session.signIn === "token" && (
            <button type="button" onClick={() => { signedIn.token = ""; props.onSignOut(); }}>Sign out</button>
          )}
        </p>
        <nav aria-label="Pages">
          <ul>
            {TABS.map(([page, title]) => (
              <li><a href={link(page)} aria-current={(TAB_OF[place.page] ?? place.page) === page ? "page" : undefined}>{title}</a></li>
            ))}
          </ul>
        </nav>
      </header>
      {view && <Freezes pools={view.pools} />}
      {(problem || noHistory || session.hidden.length > 0) && (
        <section class="notices" aria-label="Notices">
          {problem && <p role="alert" class="fault" id="problem">{problem}</p>}
          {noHistory && <p class="hint">No history: {noHistory}.</p>}
          {session.hidden.length > 0 && <p class="hint">Not shown, because you may not list it: {session.hidden.join(", ")}.</p>}
        </section>
      )}
      <main id="main" ref={heading} tabIndex={-1}>
        {view && <Page view={view} place={place} session={session} series={series} history={history.answer} />}
      </main>
    </>
  );
}

/** What is frozen, and by whom: the same words for the pools that one freeze holds. */
function Freezes(props: { pools: Pool[] }): JSX.Element | null {
  const frozen = grouped(props.pools.filter((pool) => pool.freeze), (pool) => pool.freeze);
  if (frozen.size === 0) return null;
  return (
    <div class="notices" role="status" id="freezes">
      {[...frozen].map(([freeze, pools]) => (
        <p class="frozen">{pools.length === props.pools.length ? "All NodePools are" : named(pools)} {freeze}</p>
      ))}
    </div>
  );
}

function named(pools: Pool[]): string {
  const names = pools.map((pool) => pool.name).join(", ");
  return pools.length === 1 ? `NodePool ${names} is` : `NodePools ${names} are`;
}

/** The page of the address. */
function Page(props: { view: View; place: Place; session: Session; series: Series; history: HistoryAnswer | undefined }): JSX.Element {
  const { view, place, session } = props;
  switch (place.page) {
    case "nodes":
      return <NodesPage view={view} place={place} />;
    case "node":
      return <NodePage view={view} session={session} place={place} name={place.subject} />;
    case "pending":
      return <PendingPage {...props} />;
    case "pod":
      return <PodPage view={view} name={place.subject} />;
    case "decisions":
      return <DecisionsPage view={view} history={props.history} place={place} />;
    case "decision":
      return <DecisionPage view={view} session={session} history={props.history} id={place.subject} />;
    case "pools":
      return <PoolsPage {...props} />;
    case "spend":
      return <SpendPage {...props} />;
    case "savings":
      return <SavingsPage {...props} />;
    case "what-if":
      return <WhatIfPage key={questionOf(place)} view={view} session={session} place={place} />;
    default:
      return <OverviewPage {...props} />;
  }
}

function remember(series: Series, view: View): void {
  const at = Date.parse(view.now) / 1000;
  if (at <= (series.times.at(-1) ?? 0)) return;
  series.times.push(at);
  series.price.push(view.price);
  series.managedPrice.push(view.managedPrice);
  series.bound.push(view.bound);
  series.classic.push(null);
  series.nodes.push(view.nodes.length);
  series.pending.push(view.pods.pending);
  if (series.times.length > LIVE_POINTS) for (const values of Object.values(series)) values.shift();
}

const root = document.getElementById("app");
if (root) render(<App />, root);
