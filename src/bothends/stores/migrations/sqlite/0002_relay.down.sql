drop table bothends_delayed;
drop view bothends_held_heads;
drop table bothends_held;
drop table bothends_relay_progress;
drop table bothends_relay_lanes;
drop table bothends_relays;
