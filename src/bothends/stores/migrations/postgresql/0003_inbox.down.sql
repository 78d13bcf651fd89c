drop table {s}.runs, {s}.dead_letters, {s}.parked, {s}.blocked_keys, {s}.inbox, {s}.consumers;
drop sequence {s}.parked_seq;
drop function {s}.inbox_commit(), {s}.inbox_gate(bigint, boolean, text),
    {s}.inbox_admit(int, text[], text[], bytea[], text, text, int);
