DROP TABLE object_refs;
DROP TABLE objects;
