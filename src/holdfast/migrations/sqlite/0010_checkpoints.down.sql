DROP TABLE lg_checkpoint_write;
DROP TABLE lg_checkpoint;
DROP TABLE lg_piece;
DROP TABLE lg_thread;
DROP TABLE lg_log;
