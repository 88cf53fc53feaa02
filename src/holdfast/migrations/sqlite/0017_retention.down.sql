DROP TABLE server_settings;
DROP TABLE erasures;
DROP TABLE retention_sweeps;
DROP TABLE retention_holds;
DROP TABLE run_retention;
DROP TABLE retention_policies;
ALTER TABLE tenants DROP COLUMN checkpoint_quota_mib;
