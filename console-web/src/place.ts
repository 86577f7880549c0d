// Where in the console somebody is, as the part of the address after `#`: every view can be shared as a link.

import { useEffect, useState } from "preact/hooks";

export interface Place {
  page: string;
  /** What the page is about, such as the name of a node. */
  subject: string;
  options: URLSearchParams;
}

export function readPlace(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...subject] = path.split("/");
  return { page: page || "overview", subject: subject.map(decode).join("/"), options: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(page: string, subject = "", options: Record<string, string> = {}): string {
  const named = subject ? `/${subject.split("/").map(encodeURIComponent).join("/")}` : "";
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== "")).toString();
  return `#/${page}${named}${query ? `?${query}` : ""}`;
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => readPlace(location.hash));
  useEffect(() => {
    const changed = () => setPlace(readPlace(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}

/** Change options of the place without a new entry in the browser's history. */
export function setOptions(place: Place, changes: Record<string, string>): void {
  const options = { ...Object.fromEntries(place.options), ...changes };
  history.replaceState(null, "", link(place.page, place.subject, options));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
