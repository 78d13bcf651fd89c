drop table bothends_runs;
drop table bothends_dead_letters;
drop table bothends_parked;
drop table bothends_parked_seq;
drop table bothends_blocked_keys;
drop table bothends_inbox;
drop table bothends_consumers;
