drop table bothends_outbox;
drop table bothends_meta;
