/** Who are you? */

import { words } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { field } from "../core/parts.js";

/**
 * Return the page.
 *
 * @param {Api} api
 * @param {string} said Why somebody is here, if there is a reason.
 * @param {function()} done Called when somebody has logged in.
 */
export function login(api, said, done) {
  const token = h("input", {
    type: "password",
    autocomplete: "off",
    name: "token",
    data: { first: "" },
  });
  const username = h("input", { type: "text", autocomplete: "username", name: "username" });
  const password = h("input", {
    type: "password",
    autocomplete: "current-password",
    name: "password",
  });
  const wrong = h("div", { "aria-live": "assertive" }, said && h("p.problem", said));
  const byToken = way("token", "With a token", true);
  const byAccount = way("account", "With an account", false);
  const tokenFields = h(
    "div",
    field(
      "Token",
      token,
      "An API key, or the administrator's token, which is in the file api-token of the data directory.",
    ),
  );
  const accountFields = h(
    "div",
    { hidden: true },
    field("User name", username),
    field("Password", password),
  );
  const submit = h("button.primary", { type: "submit" }, "Log in");

  const elsewhere = h("p.elsewhere", { hidden: true });
  // Who cannot be asked has none to offer.
  api.get("/login", { tenant: null }).then(
    ({ oidc }) => {
      if (oidc === null) return;
      fill(elsewhere, h("a", { href: "/api/v1/login/oidc" }, `Log in with ${oidc}`));
      elsewhere.hidden = false;
    },
    () => {},
  );

  function way(value, label, isChosen) {
    const radio = h("input", {
      type: "radio",
      name: "way",
      value,
      checked: isChosen,
      on: { change: choose },
    });
    return { radio, element: h("label.check", radio, label) };
  }
  function choose() {
    tokenFields.hidden = !byToken.radio.checked;
    accountFields.hidden = byToken.radio.checked;
  }

  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    fill(wrong);
    try {
      await api.logIn(
        byToken.radio.checked
          ? { token: token.value.trim() }
          : { username: username.value, password: password.value },
      );
      done();
    } catch (error) {
      fill(wrong, h("p.problem", { role: "alert" }, words(error)));
      (byToken.radio.checked ? token : password).select();
    } finally {
      submit.disabled = false;
    }
  }

  return h(
    "main.lonely",
    h(
      "form.login",
      { on: { submit: send }, "aria-labelledby": "login-title" },
      h(
        "div.brand",
        h("img", { src: "mark.svg", alt: "", width: 32, height: 32 }),
        h("h1", { id: "login-title" }, "mqlake"),
      ),
      h("fieldset.ways", h("legend.aside", "How to log in"), byToken.element, byAccount.element),
      tokenFields,
      accountFields,
      wrong,
      submit,
      elsewhere,
    ),
  );
}
