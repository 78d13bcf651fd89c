drop table {s}.outbox;
drop sequence {s}.outbox_seq;
drop table {s}.meta;
