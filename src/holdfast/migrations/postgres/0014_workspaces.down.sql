DROP TABLE snapshots;
DROP TABLE snapshot_layers;
