DROP TABLE object_refs;
DROP TABLE object_totals;
DROP TABLE object_packs;
DROP TABLE objects;
