-- The role of the API, the workers and `migrate`: owner of the database and its tables, and no superuser. Row-level
-- security does not bind a superuser, and the role that the Postgres image makes is one.
--
-- The superuser runs this at each `docker compose up`; the second time it changes nothing. What an earlier `up` made as
-- the superuser is handed over. Both passwords are those of the environment; without POSTGRES_PASSWORD the superuser keeps
-- the one it has.

\getenv server_password POSTGRES_SERVER_PASSWORD
\getenv superuser_password POSTGRES_PASSWORD
SET client_min_messages = warning;

DO $$
DECLARE
  one regclass;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_server') THEN
    CREATE ROLE holdfast_server;
  END IF;
  ALTER ROLE holdfast_server LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;

  EXECUTE format('ALTER DATABASE %I OWNER TO holdfast_server', current_database());
  ALTER SCHEMA public OWNER TO holdfast_server;
  -- Their indices and sequences go with them. What belongs to an extension stays the superuser's.
  FOR one IN
    SELECT pg_class.oid FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relowner <> 'holdfast_server'::regrole
      AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e')
  LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO holdfast_server', one);
  END LOOP;
END $$;

ALTER ROLE holdfast_server PASSWORD :'server_password';
\if :{?superuser_password}
ALTER ROLE CURRENT_USER PASSWORD :'superuser_password';
\endif
