drop table {s}.relay_log;
alter table {s}.relays drop column wants, drop column source, drop column reason;
