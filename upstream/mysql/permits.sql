CREATE TABLE IF NOT EXISTS {table} (
  name VARBINARY({name}) NOT NULL,
  token VARBINARY({token}) NOT NULL,
  place BIGINT NOT NULL,
  ends BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  most BIGINT NOT NULL,
  held BIGINT NOT NULL,
  waits BIGINT NOT NULL,
  turn BIGINT NOT NULL,
  PRIMARY KEY (name, token),
  KEY queue (name, place)
) ENGINE=InnoDB
