// Opens the recorded call of docs/spec/testdata/sealed-vectors.json by what
// docs/spec/sealed.md says: HPKE (RFC 9180) on the KEM of a library, everything else on
// Node's own crypto. It prints what it read as JSON.
import { createDecipheriv, createHash, createHmac, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import { ml_kem768_x25519 as XWing } from "@noble/post-quantum/hybrid.js";

const v = JSON.parse(readFileSync(process.argv[2]));
const bytes = (text) => Buffer.from(text, "base64");
const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const hmac = (key, ...parts) => createHmac("sha256", key).update(Buffer.concat(parts)).digest();
const number = (n, size) => { const b = Buffer.alloc(size); b.writeUIntBE(n, 0, size); return b; };
const check = (ok, what) => { if (!ok) throw new Error(what); };

// RFC 5869.
const extract = (salt, secret) => hmac(salt.length ? salt : Buffer.alloc(32), secret);
function expand(key, info, length) {
  let out = Buffer.alloc(0), block = Buffer.alloc(0);
  for (let i = 1; out.length < length; i++) {
    block = hmac(key, block, info, number(i, 1));
    out = Buffer.concat([out, block]);
  }
  return out.subarray(0, length);
}
const hkdf = (secret, salt, info, length) => expand(extract(salt, secret), Buffer.from(info), length);

// RFC 9180, mode base, of which only the export secret is used.
function hpke(aead, privateKey, enc, info) {
  const suite = Buffer.concat([Buffer.from("HPKE"), number(0x647a, 2), number(1, 2), number(aead, 2)]);
  const labeledExtract = (salt, label, ikm) => extract(salt, Buffer.concat([Buffer.from("HPKE-v1"), suite, Buffer.from(label), ikm]));
  const labeledExpand = (key, label, info, n) => expand(key, Buffer.concat([number(n, 2), Buffer.from("HPKE-v1"), suite, Buffer.from(label), info]), n);
  const none = Buffer.alloc(0);
  const shared = Buffer.from(XWing.decapsulate(enc, privateKey));
  const context = Buffer.concat([number(0, 1), labeledExtract(none, "psk_id_hash", none), labeledExtract(none, "info_hash", Buffer.from(info))]);
  const secret = labeledExtract(shared, "secret", none);
  return {
    key: labeledExpand(secret, "key", context, 32),
    nonce: labeledExpand(secret, "base_nonce", context, 12),
    export: (label, n) => labeledExpand(labeledExpand(secret, "exp", context, 32), "sec", label, n),
  };
}

function open(key, nonce, sealed, data = "") {
  const d = createDecipheriv("aes-256-gcm", key, nonce);
  d.setAuthTag(sealed.subarray(-16)).setAAD(Buffer.from(data));
  return Buffer.concat([d.update(sealed.subarray(0, -16)), d.final()]);
}

function unpad(b) {
  const end = b.findLastIndex((x) => x !== 0);
  check(b[end] === 0x80, "no padding");
  return b.subarray(0, end);
}

function signed(key, message, signature) {
  const spki = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), key]);
  return verify(null, message, createPublicKey({ key: spki, format: "der", type: "spki" }), signature);
}

// The statement.
const s = bytes(v.statement.bytes);
check(s.subarray(0, 16).toString() === "kith prekey v1\0\0", "magic of the statement");
const made = Number(s.readBigUInt64BE(16)), idEnd = 26 + s.readUInt16BE(24);
const account = s.subarray(idEnd, idEnd + 32), prekey = s.subarray(idEnd + 32, idEnd + 32 + 1216);
const former = s[idEnd + 1248];
check(former === 1, "one former key");
const older = s.subarray(idEnd + 1249, idEnd + 1281), succession = s.subarray(idEnd + 1281, idEnd + 1345);
check(signed(account, s.subarray(0, -64), s.subarray(-64)), "signature of the statement");
check(signed(older, Buffer.concat([Buffer.from("kith succession 1"), account]), succession), "signature of the succession");
const fingerprint = sha256(Buffer.from("kith account 1\0"), account).subarray(0, 16);

// The request.
const request = bytes(v.call.request);
check(request.subarray(0, 6).toString() === "KSEAL1", "magic of the request");
const headEnd = 11 + request.readUInt16BE(6), routingEnd = headEnd + request.readUInt16BE(8), keysEnd = routingEnd + request[10] * 1168;
const head = request.subarray(11, headEnd), hh = sha256(head), body = request.subarray(keysEnd);
const key = request.subarray(routingEnd + v.call.index * 1168, routingEnd + (v.call.index + 1) * 1168);
const x = hpke(0xffff, bytes(v.statement.private), key.subarray(0, 1120), "kith seal 1").export(Buffer.concat([Buffer.from("kith call 1\0"), hh]), 76);
const fileKey = open(x.subarray(0, 32), x.subarray(32, 44), key.subarray(1120), sha256(body));
const y = hkdf(fileKey, hh, "kith body 1", 44);
const plain = unpad(open(y.subarray(0, 32), y.subarray(32), body));
const owned = sha256(plain.subarray(0, 16), plain.subarray(80));
check(signed(account, Buffer.concat([Buffer.from("kith owner 1\0"), hh, owned]), plain.subarray(16, 80)), "the owner's proof");

// The answer.
const answerHead = bytes(v.answer.head);
check(answerHead.subarray(0, 8).equals(sha256(prekey).subarray(0, 8)), "key id of the answer");
const z = hkdf(x.subarray(44), answerHead.subarray(8), "kith answer 1", 44);
const texts = v.answer.chunks.map((chunk, k, all) => {
  const nonce = Buffer.from(z.subarray(32));
  nonce.writeBigUInt64BE(nonce.readBigUInt64BE(4) ^ BigInt(k), 4);
  return unpad(open(z.subarray(0, 32), nonce, bytes(chunk), k === all.length - 1 ? "final" : "")).toString();
});

// The approval.
const ask = bytes(v.approval.ask), approved = bytes(v.approval.answer);
const opened = hpke(2, bytes(v.approval.private), approved.subarray(0, 1120), "kith approval 1");
const seed = open(opened.key, opened.nonce, approved.subarray(1120)).subarray(0, 32);
check(ask.length === 1216 + 32, "size of the ask");

console.log(JSON.stringify({
  machine: s.subarray(26, idEnd).toString(), made, fingerprint: fingerprint.toString("base64url"), keyID: sha256(prekey).subarray(0, 8).toString("base64"),
  head: head.toString(), routing: request.subarray(headEnd, routingEnd).toString(), cache: plain.subarray(0, 16).toString("base64"),
  body: plain.subarray(80).toString(), texts, seed: seed.toString("base64"),
}));
