/** Who is logged in to the API; a session can be ended. */

import { h } from "../core/dom.js";
import { moment } from "../core/format.js";
import { ask, badge, button, notice, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";

const PAGE = 200;
const ABOUT =
  "A session is a login of a browser. It ends by itself, with a new password of its account and with the revocation of its key.";

export function logins({ api, signal }) {
  const shown = sessionTable(end);
  const read = (cursor, mine) => api.get("/sessions", { tenant: null, limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  async function end(session) {
    if (!(await ask(`End the session ${session.id} of ${session.name}?`, "End it"))) return;
    const path = `/sessions/${encodeURIComponent(session.id)}`;
    await api.send("DELETE", path, undefined, { tenant: null });
    notice(`Ended: the session ${session.id} of ${session.name}`);
    await list.load();
  }
  list.load();
  return h("div", h("p.hint", ABOUT), list.wrong, list.elements);
}

function sessionTable(end) {
  const ending = (one) =>
    one.current
      ? badge("this one", "good")
      : button("End", () => end(one), { kind: "danger", name: `End the session ${one.id}` });
  const columns = [
    { label: "Session", cell: (one) => one.id },
    { label: "Who", cell: (one) => one.name },
    { label: "Role", cell: (one) => one.role },
    { label: "Since", cell: (one) => moment(one.created_at) },
    { label: "Until", cell: (one) => moment(one.expires_at) },
    { label: "", cell: ending },
  ];
  const empty = "Nobody is logged in: programs that show a key with each request have no session.";
  return table("Sessions", columns, { empty, key: (one) => one.id });
}
