/** Who are you? */

import { fill, h } from "../core/dom.js";
import { words } from "../core/api.js";
import { field } from "../core/parts.js";

const TOKEN_HINT =
  "An API key, or the administrator's token, which is in the file api-token of the data directory.";

/**
 * Return the page.
 *
 * @param {Api} api
 * @param {string} said Why somebody is here, if there is a reason.
 * @param {function()} done Called when somebody has logged in.
 */
export function login(api, said, done) {
  const credentials = credentialFields();
  const wrong = h("div", { "aria-live": "assertive" }, said && h("p.problem", said));
  const button = h("button.primary", { type: "submit" }, "Log in");
  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    fill(wrong);
    try {
      await api.logIn(credentials.read());
      done();
    } catch (error) {
      fill(wrong, h("p.problem", { role: "alert" }, words(error)));
      credentials.again();
    } finally {
      button.disabled = false;
    }
  }
  const mark = h("img", { src: "mark.svg", alt: "", width: 32, height: 32 });
  const brand = h("div.brand", mark, h("h1", { id: "login-title" }, "mqlake"));
  return h(
    "main.lonely",
    h(
      "form.login",
      { on: { submit }, "aria-labelledby": "login-title" },
      brand,
      credentials.elements,
      wrong,
      button,
      elsewhere(api),
    ),
  );
}

/** A token, or an account with its password; `again` selects what was wrong. */
function credentialFields() {
  const token = secret("token", { autocomplete: "off", data: { first: "" } });
  const username = h("input", { type: "text", autocomplete: "username", name: "username" });
  const password = secret("password", { autocomplete: "current-password" });
  const ofToken = h("div", field("Token", token, TOKEN_HINT));
  const ofAccount = h("div", field("User name", username), field("Password", password));
  ofAccount.hidden = true;
  function choose() {
    ofToken.hidden = !byToken.checked;
    ofAccount.hidden = byToken.checked;
  }
  const way = (value, checked) =>
    h("input", { type: "radio", name: "way", value, checked, on: { change: choose } });
  const byToken = way("token", true);
  const ways = h(
    "fieldset.ways",
    h("legend.aside", "How to log in"),
    h("label.check", byToken, "With a token"),
    h("label.check", way("account", false), "With an account"),
  );
  return {
    elements: [ways, ofToken, ofAccount],
    read: () =>
      byToken.checked
        ? { token: token.value.trim() }
        : { username: username.value, password: password.value },
    again: () => (byToken.checked ? token : password).select(),
  };
}

function secret(name, props) {
  return h("input", { type: "password", name, ...props });
}

/** A link to the identity provider, if there is one. */
function elsewhere(api) {
  const place = h("p.elsewhere", { hidden: true });
  // Who cannot be asked has none to offer.
  api.get("/login", { tenant: null }).then(
    ({ oidc }) => {
      if (oidc === null) return;
      fill(place, h("a", { href: "/api/v1/login/oidc" }, `Log in with ${oidc}`));
      place.hidden = false;
    },
    () => {},
  );
  return place;
}
