// Passkeys, for the forms that use them. Without this script the forms explain that it is
// needed, and the password still works.
"use strict";

(() => {
  const forms = document.querySelectorAll("form[data-passkey]");
  if (!window.PublicKeyCredential || !navigator.credentials) return;

  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

  // Converts the hub's challenge for the browser.
  function asked(options) {
    options.challenge = bytes(options.challenge);
    if (options.user) options.user.id = bytes(options.user.id);
    for (const list of [options.allowCredentials, options.excludeCredentials]) {
      for (const known of list || []) known.id = bytes(known.id);
    }
    return options;
  }

  // Converts the browser's answer for the hub.
  function answered(credential) {
    const response = {};
    for (const part of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
      if (credential.response[part]) response[part] = text(credential.response[part]);
    }
    return JSON.stringify({ id: credential.id, rawId: text(credential.rawId), type: credential.type, response, clientExtensionResults: credential.getClientExtensionResults() });
  }

  function reason(error) {
    switch (error.name) {
      case "NotAllowedError": return "nothing was chosen, or it took too long";
      case "InvalidStateError": return "this device has a passkey for this account already";
      case "NotSupportedError": return "this device has no passkey of a kind that can be used here";
      default: return error.message || "the browser refused";
    }
  }

  async function run(form) {
    const fields = new URLSearchParams(new FormData(form));
    fields.delete("answer");
    const reply = await fetch(form.dataset.passkey, { method: "POST", body: fields });
    let told = {};
    try { told = await reply.json(); } catch {
      told = { error: { message: reply.redirected ? "you are not signed in any more: load this page again" : "the hub did not answer; try again shortly" } };
    }
    if (!reply.ok || told.error) throw new Error(told.error?.message);
    const publicKey = asked(told.publicKey);
    const credential = publicKey.rp ? await navigator.credentials.create({ publicKey }) : await navigator.credentials.get({ publicKey });
    form.elements.answer.value = answered(credential);
    if (form.elements.old) form.elements.old.value = "";
    form.submit();
  }

  for (const form of forms) {
    const button = form.querySelector("button");
    const refused = form.querySelector("[role=alert]");
    form.querySelector(".scriptless").hidden = true;
    for (const part of form.querySelectorAll(".scripted")) part.hidden = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      refused.textContent = "";
      button.disabled = true;
      try { await run(form); } catch (error) {
        refused.textContent = "Problem: " + reason(error) + ".";
      } finally { button.disabled = false; }
    });
  }
})();
