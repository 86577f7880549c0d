// How figures and times are written.

export const HOURS_PER_MONTH = 730;

export const dollars = (usd: number | null, digits = 4): string => (usd === null ? "–" : `$${usd.toFixed(digits)}`);
export const signed = (usd: number, digits = 4): string => `${usd < 0 ? "−" : "+"}$${Math.abs(usd).toFixed(digits)}`;
export const perMonth = (usd: number): string => `$${Math.round(usd * HOURS_PER_MONTH).toLocaleString("en")}`;
export const percent = (share: number): string => `${Math.round(share * 100)} %`;
export const cores = (millis: number): string => (millis % 1000 === 0 ? String(millis / 1000) : (millis / 1000).toFixed(2));
export const plural = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Rows by their key, in the order in which the keys come first. */
export function grouped<Row>(rows: readonly Row[], key: (row: Row) => string): Map<string, Row[]> {
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const members = groups.get(key(row));
    if (members) members.push(row);
    else groups.set(key(row), [row]);
  }
  return groups;
}

export const sentence = (clause: string): string => `${clause.charAt(0).toUpperCase()}${clause.slice(1)}.`;

/** Time of day in UTC, with the date unless it is that of `now`. */
export function moment(at: string | null, now: string): string {
  if (at === null) return "–";
  const time = at.slice(11, 19);
  return at.slice(0, 10) === now.slice(0, 10) ? time : `${at.slice(0, 10)} ${time}`;
}

/** How long ago, in the unit that fits. */
export function ago(at: string | null, now: string): string {
  if (at === null) return "–";
  const seconds = Math.max(0, (Date.parse(now) - Date.parse(at)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}
