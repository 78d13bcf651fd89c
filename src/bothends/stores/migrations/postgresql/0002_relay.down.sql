drop function {s}.outbox_late, {s}.outbox_fit;
drop table {s}.delayed, {s}.held, {s}.relay_progress, {s}.relay_lanes, {s}.relays;
drop sequence {s}.relay_progress_seq;
