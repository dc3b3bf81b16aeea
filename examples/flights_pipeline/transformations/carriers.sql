SET spark.executor.cores = 1;

CREATE MATERIALIZED VIEW carriers AS
WITH counted AS (SELECT carrier, dep_delay FROM departed)
SELECT carrier, count(*) AS flights, max(dep_delay) AS worst_delay
FROM counted
GROUP BY carrier;
