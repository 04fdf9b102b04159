/** Accounts: people who log in with a name. Make, change, delete. */

import { fill, h } from "../core/dom.js";
import { form } from "../core/form.js";
import { moment } from "../core/format.js";
import { ask, button, field, input, notice, panel, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { ACCOUNT_NAME, MAX_PASSWORD, MIN_PASSWORD } from "../core/vocabulary.js";
import { scopeFields, scopeOf } from "./access_scope.js";

const PAGE = 200;
const EMPTY = "There is no account. Make one below for each person who logs in here.";
const NAME = "Letters, digits and ._@-";
const NO_PASSWORD = "At least 8 characters; empty: it logs in at the identity provider alone.";
const SAME_PASSWORD = "Empty: as it is. Another one ends the sessions of the account.";

export function accounts({ api, signal }) {
  const changing = h("div");
  const shown = accountTable((one) => change(one));
  const read = (cursor, mine) => api.get("/accounts", { tenant: null, limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  const send = (method, name, body) => api.send(method, `/accounts${name}`, body, { tenant: null });

  async function done(said) {
    fill(changing);
    notice(said);
    await list.load();
  }
  async function make(body) {
    await send("POST", "", body);
    await done(`Account ${body.name} is made.`);
  }
  function change(account) {
    const path = `/${encodeURIComponent(account.name)}`;
    const keep = async (body) => {
      await send("PUT", path, body);
      await done(`Account ${account.name} is changed.`);
    };
    const remove = async () => {
      if (!(await ask(`Delete the account ${account.name}? Its sessions end.`, "Delete"))) return;
      await send("DELETE", path);
      await done(`Account ${account.name} is deleted.`);
    };
    fill(
      changing,
      changedAccount(account, keep, remove, () => fill(changing)),
    );
    changing.querySelector("select").focus();
  }
  list.load();
  return h("div", list.wrong, list.elements, changing, newAccount(make));
}

function accountTable(open) {
  const columns = [
    { label: "Account", cell: (one) => one.name },
    { label: "Role", cell: (one) => one.role },
    { label: "Reaches", cell: scopeOf, class: "wide" },
    { label: "Made", cell: (one) => `${moment(one.created_at)} by ${one.created_by}` },
    { label: "Password of", cell: (one) => moment(one.password_changed_at) },
  ];
  return table("Accounts", columns, { empty: EMPTY, open, key: (one) => one.name });
}

function passwordField() {
  return h("input", {
    type: "password",
    autocomplete: "new-password",
    minlength: MIN_PASSWORD,
    maxlength: MAX_PASSWORD,
  });
}

function newAccount(make) {
  const name = input({
    required: true,
    pattern: ACCOUNT_NAME,
    autocomplete: "off",
  });
  const password = passwordField();
  const scope = scopeFields();
  const work = async () => {
    await make({ name: name.value, password: password.value || null, ...scope.read() });
    name.value = password.value = "";
  };
  const fields = [
    field("User name", name, NAME),
    field("Password", password, NO_PASSWORD),
    ...scope.elements,
  ];
  return h(
    "details",
    h("summary", "Make an account"),
    form("Make the account", fields, work).element,
  );
}

function changedAccount(account, keep, remove, close) {
  const password = passwordField();
  const scope = scopeFields(account);
  const work = () => keep({ ...scope.read(), password: password.value || null });
  const fields = [...scope.elements, field("New password", password, SAME_PASSWORD)];
  const beside = [button("Delete", remove, { kind: "danger" }), button("Cancel", close)];
  return panel(account.name, form("Save", fields, work, { beside }).element);
}
