drop function {s}.outbox_late, {s}.outbox_fit;
drop table {s}.delayed, {s}.held, {s}.relay_progress, {s}.relay_lanes, {s}.relays;
drop function {s}.held_heads;
drop sequence {s}.relay_progress_seq;
