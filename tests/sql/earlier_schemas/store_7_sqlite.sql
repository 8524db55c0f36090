CREATE TABLE IF NOT EXISTS seventh_schema (
  component VARCHAR(40) NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (component)
);

CREATE TABLE IF NOT EXISTS seventh_action_items (
  action BIGINT NOT NULL,
  number BIGINT NOT NULL,
  letter VARCHAR(32) NOT NULL,
  identity BLOB,
  outcome VARCHAR(255) NOT NULL,
  detail TEXT NOT NULL,
  "before" BLOB,
  "after" BLOB,
  stored BLOB,
  stored_until BIGINT,
  at BIGINT NOT NULL,
  PRIMARY KEY (action, number)
);

CREATE INDEX IF NOT EXISTS seventh_action_items_identity ON seventh_action_items (identity);

CREATE INDEX IF NOT EXISTS seventh_action_items_stored_until ON seventh_action_items (stored_until);

CREATE TABLE IF NOT EXISTS seventh_actions (
  position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  method VARCHAR(255) NOT NULL,
  action VARCHAR(255) NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  scope BLOB NOT NULL,
  upto BIGINT NOT NULL,
  reached BIGINT NOT NULL,
  reason TEXT NOT NULL,
  state VARCHAR(255) NOT NULL,
  total BIGINT NOT NULL,
  done BIGINT NOT NULL,
  kept BIGINT NOT NULL,
  runner VARCHAR(255) NOT NULL,
  lease BIGINT NOT NULL
);

CREATE INDEX IF NOT EXISTS seventh_actions_state ON seventh_actions (state, position);

CREATE TABLE IF NOT EXISTS seventh_claim_00 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_01 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_02 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_03 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_04 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_05 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_06 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_07 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_08 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_09 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_10 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_11 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_12 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_13 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_14 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claim_15 (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_claims (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  arrived_at BIGINT DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)) NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS seventh_claims_arrived_at ON seventh_claims (arrived_at);

CREATE TABLE IF NOT EXISTS seventh_dead_letters (
  position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  "key" VARCHAR(32) NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  type TEXT NOT NULL,
  reason TEXT NOT NULL,
  stored_at BIGINT NOT NULL,
  letter BLOB NOT NULL,
  failure BLOB NOT NULL,
  identity BLOB,
  UNIQUE ("key")
);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_endpoint ON seventh_dead_letters (endpoint, position);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_failure ON seventh_dead_letters (endpoint, failure, position);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_identity ON seventh_dead_letters (identity);

CREATE TABLE IF NOT EXISTS seventh_entities (
  "key" BLOB NOT NULL,
  state BLOB NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY ("key")
);

CREATE TABLE IF NOT EXISTS seventh_janitor (
  endpoint VARCHAR(255) NOT NULL,
  journal BLOB NOT NULL,
  PRIMARY KEY (endpoint)
);

CREATE TABLE IF NOT EXISTS seventh_keys (
  "key" BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  attempt VARCHAR(255) NOT NULL,
  answer BLOB,
  stored_at BIGINT NOT NULL,
  PRIMARY KEY ("key")
);

CREATE INDEX IF NOT EXISTS seventh_keys_stored_at ON seventh_keys (stored_at);

CREATE TABLE IF NOT EXISTS seventh_processes (
  endpoint VARCHAR(255) NOT NULL,
  process VARCHAR(255) NOT NULL,
  host VARCHAR(255) NOT NULL,
  pid BIGINT NOT NULL,
  version VARCHAR(255) NOT NULL,
  seen BIGINT NOT NULL,
  counters BLOB NOT NULL,
  troubles BLOB NOT NULL,
  types BLOB NOT NULL,
  PRIMARY KEY (endpoint, process)
);

CREATE TABLE IF NOT EXISTS seventh_records (
  "key" BLOB NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  source TEXT NOT NULL,
  id TEXT NOT NULL,
  effects BLOB NOT NULL,
  stored_at BIGINT NOT NULL,
  claim BLOB,
  taken_at BIGINT,
  PRIMARY KEY ("key")
);

CREATE INDEX IF NOT EXISTS seventh_records_claim ON seventh_records (claim) WHERE claim IS NOT NULL;

CREATE INDEX IF NOT EXISTS seventh_records_stored_at ON seventh_records (endpoint, stored_at);

CREATE TABLE IF NOT EXISTS seventh_register (
  attempt BLOB NOT NULL,
  "key" BLOB NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  source TEXT NOT NULL,
  id TEXT NOT NULL,
  unit TEXT NOT NULL,
  opened_at BIGINT NOT NULL,
  cancelled BOOLEAN NOT NULL,
  PRIMARY KEY (attempt)
);

CREATE INDEX IF NOT EXISTS seventh_register_key ON seventh_register ("key");

CREATE INDEX IF NOT EXISTS seventh_register_opened_at ON seventh_register (endpoint, opened_at);

CREATE TABLE IF NOT EXISTS seventh_ring (
  number INTEGER NOT NULL,
  width BIGINT NOT NULL,
  PRIMARY KEY (number)
);

CREATE TABLE IF NOT EXISTS seventh_starts (
  "key" BLOB NOT NULL,
  attempts INTEGER NOT NULL,
  token BLOB NOT NULL,
  until BIGINT NOT NULL,
  PRIMARY KEY ("key")
);

CREATE TABLE IF NOT EXISTS seventh_tokens (
  "key" BLOB NOT NULL,
  PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seventh_unsubscribed (
  endpoint VARCHAR(255) NOT NULL,
  type VARCHAR(255) NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (endpoint, type)
);

INSERT INTO seventh_schema (component, version) VALUES ('store', 7);

INSERT INTO seventh_claim_00 ("key", "fingerprint") VALUES
  (X'018bc969400000000000000000000000', X'0000000000000000'),
  (X'018bcabf0c00491518f3019dc96f4410', X'4c92e93d71e1a9a1'),
  (X'018bcabf0c00a9e265cc2d93e2eac1cc', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_01 ("key", "fingerprint") VALUES
  (X'018bcc6a4b0000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_02 ("key", "fingerprint") VALUES
  (X'018bcf6b560000000000000000000000', X'0000000000000000'),
  (X'018bcfe568005d2869cd91ba007f4f7a', X'4c92e93d71e1a9a1'),
  (X'018bcfe56800ae2ae7064196ce5aa7ba', X'4c92e93d71e1a9a1'),
  (X'018bcfe56800dfea9bf0fe5dcb7ee47d', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_03 ("key", "fingerprint") VALUES
  (X'018bd26c610000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_04 ("key", "fingerprint") VALUES
  (X'018bd56d6c0000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_05 ("key", "fingerprint") VALUES
  (X'018bd86e770000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_06 ("key", "fingerprint") VALUES
  (X'018bab5ed20000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_07 ("key", "fingerprint") VALUES
  (X'018bae5fdd0000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_08 ("key", "fingerprint") VALUES
  (X'018bb160e80000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_09 ("key", "fingerprint") VALUES
  (X'018bb461f30000000000000000000000', X'0000000000000000'),
  (X'018bb6259c0018483540f928774b2081', X'4c92e93d71e1a9a1'),
  (X'018bb6259c00ba6b2f2eb40fcceba328', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_10 ("key", "fingerprint") VALUES
  (X'018bb762fe0000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_11 ("key", "fingerprint") VALUES
  (X'018bba64090000000000000000000000', X'0000000000000000'),
  (X'018bbb4bf80075fdcb6e2cdb346315e4', X'4c92e93d71e1a9a1'),
  (X'018bbb4bf800a0b31653d18e1599f525', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_12 ("key", "fingerprint") VALUES
  (X'018bbd65140000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claim_13 ("key", "fingerprint") VALUES
  (X'018bc0661f0000000000000000000000', X'0000000000000000'),
  (X'018bc072540002b95cf8b680ab79f565', X'4c92e93d71e1a9a1'),
  (X'018bc0725400756889559412c50f3e45', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_14 ("key", "fingerprint") VALUES
  (X'018bc3672a0000000000000000000000', X'0000000000000000'),
  (X'018bc598b0002977049cb8f29aca7359', X'4c92e93d71e1a9a1'),
  (X'018bc598b000b3f512d2148924df51d4', X'4c92e93d71e1a9a1');

INSERT INTO seventh_claim_15 ("key", "fingerprint") VALUES
  (X'018bc668350000000000000000000000', X'0000000000000000');

INSERT INTO seventh_claims ("key", "fingerprint", "arrived_at") VALUES
  (X'22d23efb4ec8aa5bee62bf8b6725213f', X'4c92e93d71e1a9a1', 1700000000000),
  (X'3e83e0ba78c394333bbc199f785978a7', X'4c92e93d71e1a9a1', 1700000000000);

INSERT INTO seventh_records ("key", "endpoint", "source", "id", "effects", "stored_at", "claim", "taken_at") VALUES
  (X'1f9eb6910fbba5910fd3f0f0ada7d038', 'shop', 'till', '018bcfe56800-00000070656e64696e678960', X'01949182a76d65737361676589a26964a56f75742d31a6736f75726365ae6bc3b66c6e2fe28496203720ceb4a474797065b473686f702e6f726465722d706c616365642e7631a4626f6479c50100000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeffa474696d65b8323032362d30322d32385432333a35393a35392e3939395aa77375626a656374b56bc3b66c6e20e2869220e69db1e4baac20f09f9babaf64617461636f6e74656e7474797065b86170706c69636174696f6e2f6f637465742d73747265616daa657874656e73696f6e739492ab636175736174696f6e6964a363203192ae636f6e766572736174696f6e6964a2cf8092a77265706c79746fa574696c6c7392ab7472616365706172656e74ab30302d61622d63642d3031a7686561646572739392a6782d73686f70ba71756f7465202220636f6d6d61202c206261636b5c736c61736892a6582d43617365a44b65707492a7782d656d707479a0a2746fa762696c6c696e67a09090', 1700000000000, X'018bcfe56800dfea9bf0fe5dcb7ee47d', NULL);

INSERT INTO seventh_ring ("number", "width") VALUES
  (1, 50400000);
