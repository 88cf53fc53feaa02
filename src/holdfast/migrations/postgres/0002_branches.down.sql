-- What is not on the first branch cannot be said in the older schema.
DELETE FROM messages WHERE seq >= 1099511627776;
DROP TABLE branches;
ALTER TABLE sessions DROP COLUMN compact_from;
ALTER TABLE sessions DROP COLUMN search_behind;
ALTER TABLE sessions DROP COLUMN view;
ALTER TABLE sessions DROP COLUMN blocks;
ALTER TABLE sessions DROP COLUMN branch;
