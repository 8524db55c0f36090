CREATE TABLE IF NOT EXISTS seventh_schema (
  component VARCHAR(40) NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (component)
);

CREATE TABLE IF NOT EXISTS seventh_action_items (
  action BIGINT NOT NULL,
  number BIGINT NOT NULL,
  letter VARCHAR(32) NOT NULL,
  identity UUID,
  outcome VARCHAR(255) NOT NULL,
  detail VARCHAR NOT NULL,
  before BIGINT,
  after BIGINT,
  stored BYTEA,
  stored_until BIGINT,
  at BIGINT NOT NULL,
  PRIMARY KEY (action, number)
);

CREATE INDEX IF NOT EXISTS seventh_action_items_identity ON seventh_action_items (identity);

CREATE INDEX IF NOT EXISTS seventh_action_items_stored_until ON seventh_action_items (stored_until);

CREATE TABLE IF NOT EXISTS seventh_actions (
  position BIGSERIAL NOT NULL,
  at BIGINT NOT NULL,
  actor VARCHAR NOT NULL,
  method VARCHAR(255) NOT NULL,
  action VARCHAR(255) NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  scope BYTEA NOT NULL,
  upto BIGINT NOT NULL,
  reached BIGINT NOT NULL,
  reason VARCHAR NOT NULL,
  state VARCHAR(255) NOT NULL,
  total BIGINT NOT NULL,
  done BIGINT NOT NULL,
  kept BIGINT NOT NULL,
  runner VARCHAR(255) NOT NULL,
  lease BIGINT NOT NULL,
  PRIMARY KEY (position)
);

CREATE INDEX IF NOT EXISTS seventh_actions_state ON seventh_actions (state, position);

CREATE TABLE IF NOT EXISTS seventh_claim_00 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_01 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_02 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_03 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_04 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_05 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_06 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_07 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_08 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_09 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_10 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_11 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_12 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_13 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_14 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claim_15 (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_claims (
  key UUID NOT NULL,
  fingerprint BIGINT NOT NULL,
  arrived_at BIGINT DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) NOT NULL,
  PRIMARY KEY (key)
);

CREATE INDEX IF NOT EXISTS seventh_claims_arrived_at ON seventh_claims (arrived_at);

CREATE TABLE IF NOT EXISTS seventh_dead_letters (
  position BIGSERIAL NOT NULL,
  key VARCHAR(32) NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  type VARCHAR NOT NULL,
  reason VARCHAR NOT NULL,
  stored_at BIGINT NOT NULL,
  letter BYTEA NOT NULL,
  failure UUID NOT NULL,
  identity UUID,
  PRIMARY KEY (position),
  UNIQUE (key)
);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_endpoint ON seventh_dead_letters (endpoint, position);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_failure ON seventh_dead_letters (endpoint, failure, position);

CREATE INDEX IF NOT EXISTS seventh_dead_letters_identity ON seventh_dead_letters (identity);

CREATE TABLE IF NOT EXISTS seventh_entities (
  key BYTEA NOT NULL,
  state BYTEA NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_janitor (
  endpoint VARCHAR(255) NOT NULL,
  journal BYTEA NOT NULL,
  PRIMARY KEY (endpoint)
);

CREATE TABLE IF NOT EXISTS seventh_keys (
  key UUID NOT NULL,
  fingerprint UUID NOT NULL,
  attempt VARCHAR(255) NOT NULL,
  answer BYTEA,
  stored_at BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE INDEX IF NOT EXISTS seventh_keys_stored_at ON seventh_keys (stored_at);

CREATE TABLE IF NOT EXISTS seventh_processes (
  endpoint VARCHAR(255) NOT NULL,
  process VARCHAR(255) NOT NULL,
  host VARCHAR(255) NOT NULL,
  pid BIGINT NOT NULL,
  version VARCHAR(255) NOT NULL,
  seen BIGINT NOT NULL,
  counters BYTEA NOT NULL,
  troubles BYTEA NOT NULL,
  types BYTEA NOT NULL,
  PRIMARY KEY (endpoint, process)
);

CREATE TABLE IF NOT EXISTS seventh_records (
  key UUID NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  source BYTEA NOT NULL,
  id BYTEA NOT NULL,
  effects BYTEA NOT NULL,
  stored_at BIGINT NOT NULL,
  claim UUID,
  taken_at BIGINT,
  PRIMARY KEY (key)
);

CREATE INDEX IF NOT EXISTS seventh_records_claim ON seventh_records (claim) WHERE claim IS NOT NULL;

CREATE INDEX IF NOT EXISTS seventh_records_stored_at ON seventh_records (endpoint, stored_at);

CREATE TABLE IF NOT EXISTS seventh_register (
  attempt BYTEA NOT NULL,
  key UUID NOT NULL,
  endpoint VARCHAR(255) NOT NULL,
  source BYTEA NOT NULL,
  id BYTEA NOT NULL,
  unit BYTEA NOT NULL,
  opened_at BIGINT NOT NULL,
  cancelled BOOLEAN NOT NULL,
  PRIMARY KEY (attempt)
);

CREATE INDEX IF NOT EXISTS seventh_register_key ON seventh_register (key);

CREATE INDEX IF NOT EXISTS seventh_register_opened_at ON seventh_register (endpoint, opened_at);

CREATE TABLE IF NOT EXISTS seventh_ring (
  number INTEGER NOT NULL,
  width BIGINT NOT NULL,
  PRIMARY KEY (number)
);

CREATE TABLE IF NOT EXISTS seventh_starts (
  key UUID NOT NULL,
  attempts INTEGER NOT NULL,
  token UUID NOT NULL,
  until BIGINT NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_tokens (
  key UUID NOT NULL,
  PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS seventh_unsubscribed (
  endpoint VARCHAR(255) NOT NULL,
  type VARCHAR(255) NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (endpoint, type)
);

INSERT INTO seventh_schema (component, version) VALUES ('store', 7);

INSERT INTO seventh_claim_00 ("key", "fingerprint") VALUES
  ('018bc969-4000-0000-0000-000000000000', 0),
  ('018bcabf-0c00-4915-18f3-019dc96f4410', 5517728943595170209),
  ('018bcabf-0c00-a9e2-65cc-2d93e2eac1cc', 5517728943595170209);

INSERT INTO seventh_claim_01 ("key", "fingerprint") VALUES
  ('018bcc6a-4b00-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_02 ("key", "fingerprint") VALUES
  ('018bcf6b-5600-0000-0000-000000000000', 0),
  ('018bcfe5-6800-5d28-69cd-91ba007f4f7a', 5517728943595170209),
  ('018bcfe5-6800-ae2a-e706-4196ce5aa7ba', 5517728943595170209),
  ('018bcfe5-6800-dfea-9bf0-fe5dcb7ee47d', 5517728943595170209);

INSERT INTO seventh_claim_03 ("key", "fingerprint") VALUES
  ('018bd26c-6100-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_04 ("key", "fingerprint") VALUES
  ('018bd56d-6c00-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_05 ("key", "fingerprint") VALUES
  ('018bd86e-7700-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_06 ("key", "fingerprint") VALUES
  ('018bab5e-d200-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_07 ("key", "fingerprint") VALUES
  ('018bae5f-dd00-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_08 ("key", "fingerprint") VALUES
  ('018bb160-e800-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_09 ("key", "fingerprint") VALUES
  ('018bb461-f300-0000-0000-000000000000', 0),
  ('018bb625-9c00-1848-3540-f928774b2081', 5517728943595170209),
  ('018bb625-9c00-ba6b-2f2e-b40fcceba328', 5517728943595170209);

INSERT INTO seventh_claim_10 ("key", "fingerprint") VALUES
  ('018bb762-fe00-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_11 ("key", "fingerprint") VALUES
  ('018bba64-0900-0000-0000-000000000000', 0),
  ('018bbb4b-f800-75fd-cb6e-2cdb346315e4', 5517728943595170209),
  ('018bbb4b-f800-a0b3-1653-d18e1599f525', 5517728943595170209);

INSERT INTO seventh_claim_12 ("key", "fingerprint") VALUES
  ('018bbd65-1400-0000-0000-000000000000', 0);

INSERT INTO seventh_claim_13 ("key", "fingerprint") VALUES
  ('018bc066-1f00-0000-0000-000000000000', 0),
  ('018bc072-5400-02b9-5cf8-b680ab79f565', 5517728943595170209),
  ('018bc072-5400-7568-8955-9412c50f3e45', 5517728943595170209);

INSERT INTO seventh_claim_14 ("key", "fingerprint") VALUES
  ('018bc367-2a00-0000-0000-000000000000', 0),
  ('018bc598-b000-2977-049c-b8f29aca7359', 5517728943595170209),
  ('018bc598-b000-b3f5-12d2-148924df51d4', 5517728943595170209);

INSERT INTO seventh_claim_15 ("key", "fingerprint") VALUES
  ('018bc668-3500-0000-0000-000000000000', 0);

INSERT INTO seventh_claims ("key", "fingerprint", "arrived_at") VALUES
  ('22d23efb-4ec8-aa5b-ee62-bf8b6725213f', 5517728943595170209, 1700000000000),
  ('3e83e0ba-78c3-9433-3bbc-199f785978a7', 5517728943595170209, 1700000000000);

INSERT INTO seventh_records ("key", "endpoint", "source", "id", "effects", "stored_at", "claim", "taken_at") VALUES
  ('1f9eb691-0fbb-a591-0fd3-f0f0ada7d038', 'shop', '\x74696c6c', '\x3031386263666535363830302d303030303030373036353665363436393665363738393630', '\x01949182a76d65737361676589a26964a56f75742d31a6736f75726365ae6bc3b66c6e2fe28496203720ceb4a474797065b473686f702e6f726465722d706c616365642e7631a4626f6479c50100000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeffa474696d65b8323032362d30322d32385432333a35393a35392e3939395aa77375626a656374b56bc3b66c6e20e2869220e69db1e4baac20f09f9babaf64617461636f6e74656e7474797065b86170706c69636174696f6e2f6f637465742d73747265616daa657874656e73696f6e739492ab636175736174696f6e6964a363203192ae636f6e766572736174696f6e6964a2cf8092a77265706c79746fa574696c6c7392ab7472616365706172656e74ab30302d61622d63642d3031a7686561646572739392a6782d73686f70ba71756f7465202220636f6d6d61202c206261636b5c736c61736892a6582d43617365a44b65707492a7782d656d707479a0a2746fa762696c6c696e67a09090', 1700000000000, '018bcfe5-6800-dfea-9bf0-fe5dcb7ee47d', NULL);

INSERT INTO seventh_ring ("number", "width") VALUES
  (1, 50400000);
